//! The machine files that ship.

/// A machine file that ships.
#[derive(Clone, Copy, Debug)]
pub struct ShippedMachine {
    /// The name users give.
    pub name: &'static str,
    /// Its path in the repository.
    pub path: &'static str,
    /// Its text.
    pub text: &'static str,
}

macro_rules! shipped {
    ($($name:literal)*) => {
        /// Every machine file that ships.
        pub const MACHINES: &[ShippedMachine] = &[$(ShippedMachine {
            name: $name,
            path: concat!("compiler/cost/src/machines/", $name, ".machine.toml"),
            text: include_str!(concat!("machines/", $name, ".machine.toml")),
        }),*];
    };
}

shipped!("dgx-a100-80g" "dgx-a100-40g" "dgx-h100" "h100-96g-500w" "dgx-h200" "sakura-one" "abci-v100" "flow-type2-v100" "cpu");

/// The text of the machine file of that name.
pub fn find(name: &str) -> Option<&'static str> {
    MACHINES.iter().find(|m| m.name == name).map(|m| m.text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::estimate::Goodput;
    use crate::machine::{Machine, UNCALIBRATED};
    use toml::Value;

    /// The first number of a table, or below it, that no source covers.
    fn without_source(value: &Value, covered: bool, path: &str) -> Option<String> {
        match value {
            Value::Integer(_) | Value::Float(_) => (!covered).then(|| path.to_string()),
            Value::Array(all) => all.iter().find_map(|v| without_source(v, covered, path)),
            Value::Table(table) => {
                let source = table.get("source");
                let all = covered || source.is_some_and(Value::is_str);
                let keys = source.and_then(Value::as_table);
                table.iter().find_map(|(key, v)| {
                    without_source(
                        v,
                        all || keys.is_some_and(|k| k.contains_key(key)),
                        &format!("{path}.{key}"),
                    )
                })
            }
            _ => None,
        }
    }

    #[test]
    fn every_number_of_a_shipped_machine_has_a_source() {
        for ShippedMachine { name, text, .. } in MACHINES {
            let file: toml::Table = text.parse().unwrap();
            for (key, value) in file.iter().filter(|(key, _)| *key != "version") {
                // What `calibrate` measures says where in `[calibration]`.
                let measured = ["errors", "calibration"].contains(&key.as_str());
                assert_eq!(without_source(value, measured, &format!("{name}: {key}")), None);
            }
        }
        let bare: toml::Table = "[a]\nx = 1\ny = [[1, 2.0]]\nsource = { x = \"here\" }".parse().unwrap();
        assert_eq!(without_source(&Value::Table(bare), false, ""), Some(".a.y".into()));
    }

    #[test]
    fn shipped_machines_are_read() {
        for ShippedMachine { name, text, .. } in MACHINES {
            let machine = Machine::read(text).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(text.starts_with("# "), "{name} begins without a comment");
            assert!(machine.calibration.is_some() || machine.error("matmul") >= UNCALIBRATED, "{name}");
            let again = machine.to_toml().unwrap();
            assert_eq!(Machine::read(&again).unwrap(), machine, "{name}");
        }
    }

    /// More than 90 % of the time, with an interruption in 3.1 hours: Llama 3's report (2024, section 3.3.4).
    #[test]
    fn sixteen_thousand_devices_keep_nine_tenths_of_the_time() {
        for name in ["dgx-h100", "dgx-h200", "h100-96g-500w", "sakura-one"] {
            let machine = Machine::read(find(name).unwrap()).unwrap();
            let goodput = Goodput::of(&machine, 16_384).unwrap();
            assert!((goodput.between / 3600.0 - 3.1).abs() < 0.01 && goodput.share > 0.9, "{goodput:?}");
            assert!(goodput.share < 0.93 && Goodput::of(&machine, 8).unwrap().share > 0.99, "{goodput:?}");
        }
    }

    #[test]
    fn every_file_of_the_folder_ships() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/machines");
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|f| f.unwrap().file_name().to_string_lossy().replace(".machine.toml", ""))
            .collect();
        let mut names: Vec<&str> = MACHINES.iter().map(|m| m.name).collect();
        files.sort();
        names.sort_unstable();
        assert_eq!(files, names);
        assert!(find("dgx-h100").is_some() && find("nothing").is_none());
    }
}
