//! The combinations of a sweep: all that there are, or those that a search draws.

use super::combination::Combination;
use super::spec::{Choices, SeedList, SweepSpec};
use super::values::{ConstValues, OneOrMany};
use crate::args::SearchChoice;
use crate::condition::ConditionFilter;
use crate::refusal::wrong;
use meshwright_files::Checked;
use meshwright_plan::random::{Key, uniform01};
use meshwright_sorted::SortedMap;

/// Combinations are counted before they are made. Each is compiled before the first one runs.
const MOST: usize = 10_000;

/// The combinations of a sweep, in order, each once.
pub(crate) fn combinations(spec: &SweepSpec) -> Checked<Vec<Combination>> {
    let bases = bases(spec);
    let mut all = Vec::new();
    for base in &bases {
        let drawn = match spec.search {
            SearchChoice::Grid => every(base)?,
            SearchChoice::Halving if !base.set.values().any(|v| matches!(v, ConstValues::Range(_))) => {
                every(base)?
            }
            SearchChoice::Random | SearchChoice::Halving => trials(spec, base)?,
        };
        all.extend(drawn);
        few(all.len())?;
    }
    let all = chosen(spec, &bases, all)?;
    let mut out: Vec<Combination> = Vec::new();
    let mut names: SortedMap<String, usize> = SortedMap::new();
    let alone = all.iter().filter(|_| spec.one_device).map(Combination::on_one_device);
    for c in alone.chain(all.iter().cloned()) {
        let name = c.name();
        match names.get(&name) {
            Some(i) if out[*i] == c => continue,
            Some(i) => {
                let (a, b) = (described(&out[*i]), described(&c));
                let d = wrong(format!("two combinations would both be called `{name}`: {a}, and {b}"));
                return Err(Box::new(d.help(
                    "write the rules of each layout to a file of its own: its name is that of the run",
                )));
            }
            None => names.insert(name.clone(), out.len()),
        };
        out.push(c);
    }
    Ok(out)
}

fn described(c: &Combination) -> String {
    format!("`{}` on `{}`", c.layout.as_deref().unwrap_or(""), c.mesh.as_deref().unwrap_or("one device"))
}

/// The choices of which combinations are made: those of the sweep, or each of its list with what it leaves open from above.
fn bases(spec: &SweepSpec) -> Vec<Choices> {
    let above = spec.choices();
    let list = |mine: &OneOrMany<String>, above: &OneOrMany<String>| match mine.all().is_empty() {
        true => above.clone(),
        false => mine.clone(),
    };
    let below = |c: &Choices| {
        let mut out = Choices {
            layout: list(&c.layout, &above.layout),
            mesh: list(&c.mesh, &above.mesh),
            seeds: c.seeds.clone().or_else(|| above.seeds.clone()),
            ..above.clone()
        };
        out.dim.extend(c.dim.clone());
        out.set.extend(c.set.clone());
        out
    };
    if spec.combination.is_empty() {
        vec![above.clone()]
    } else {
        spec.combination.iter().map(below).collect()
    }
}

fn seeds(choices: &Choices) -> Vec<u64> {
    match &choices.seeds {
        None => vec![0],
        Some(SeedList::Count(n)) => (0..u64::from(*n)).collect(),
        Some(SeedList::List(seeds)) => seeds.clone(),
    }
}

/// What may stand in a place, where nothing stands for a layout or mesh of its own.
fn some(list: &OneOrMany<String>) -> Vec<Option<String>> {
    let all = list.all();
    if all.is_empty() { vec![None] } else { all.into_iter().map(Some).collect() }
}

/// All combinations of lists.
fn every(choices: &Choices) -> Checked<Vec<Combination>> {
    let (layouts, meshes, seeds) = (some(&choices.layout), some(&choices.mesh), seeds(choices));
    let mut all = vec![Combination::default()];
    let mut count = layouts.len() * meshes.len() * seeds.len();
    for values in choices.dim.values() {
        count = count.saturating_mul(values.all().len());
    }
    for (name, values) in &choices.set {
        match values {
            ConstValues::List(list) => count = count.saturating_mul(list.len()),
            ConstValues::Range(_) => {
                let d = wrong(format!(
                    "`--set {name}` is a range, and all combinations of its values are too many"
                ));
                let d = d.help("draw some of them: `--search random --trials 20`");
                return Err(Box::new(d.help(format!("or list the values: `--set {name}=0.1,0.01`"))));
            }
        }
    }
    few(count)?;
    all = cross(all, &layouts, |c, l| c.layout = l.clone());
    all = cross(all, &meshes, |c, m| c.mesh = m.clone());
    for (name, sizes) in &choices.dim {
        all = cross(all, &sizes.all(), |c, n| c.dims.push((name.clone(), *n)));
    }
    for (name, values) in &choices.set {
        let ConstValues::List(list) = values else { continue };
        all = cross(all, list, |c, v| c.sets.push((name.clone(), *v)));
    }
    Ok(cross(all, &seeds, |c, s| c.seed = *s))
}

/// Refuses more combinations than can be.
fn few(count: usize) -> Checked<()> {
    if count <= MOST {
        return Ok(());
    }
    let d = wrong(format!("there are {count} combinations, more than {MOST}"));
    Err(Box::new(d.help("draw some of them: `--search random --trials 100`")))
}

fn cross<T>(all: Vec<Combination>, values: &[T], with: impl Fn(&mut Combination, &T)) -> Vec<Combination> {
    let made = |c: Combination, v: &T| {
        let mut c = c;
        with(&mut c, v);
        c
    };
    all.into_iter().flat_map(|c| values.iter().map(|v| made(c.clone(), v)).collect::<Vec<_>>()).collect()
}

/// Combinations that are drawn: of each list an element, of each range a value; each with all seeds.
fn trials(spec: &SweepSpec, choices: &Choices) -> Checked<Vec<Combination>> {
    let Some(n) = spec.trials else {
        let d = wrong("a random search needs to know how many combinations to draw".into());
        return Err(Box::new(d.help("say it: `--trials 20`")));
    };
    few((n as usize).saturating_mul(seeds(choices).len()))?;
    let mut out = Vec::new();
    for trial in 0..u64::from(n) {
        // A draw depends on the seed, what it is for and the number of the trial: more trials change none.
        let share = |what: &str| uniform01(Key::new(spec.search_seed, &format!("sweep {what}")), trial);
        let at = |what: &str, n: usize| ((share(what) * n as f64) as usize).min(n.saturating_sub(1));
        let one = |what: &str, list: &[Option<String>]| list.get(at(what, list.len())).cloned().flatten();
        let mut c = Combination {
            layout: one("layout", &some(&choices.layout)),
            mesh: one("mesh", &some(&choices.mesh)),
            ..Combination::default()
        };
        for (name, sizes) in &choices.dim {
            let sizes = sizes.all();
            c.dims.extend(sizes.get(at(&format!("dim {name}"), sizes.len())).map(|n| (name.clone(), *n)));
        }
        for (name, values) in &choices.set {
            let what = format!("set {name}");
            let value = match values {
                ConstValues::List(list) => list.get(at(&what, list.len())).copied(),
                ConstValues::Range(range) => Some(range.at(share(&what))),
            };
            c.sets.extend(value.map(|v| (name.clone(), v)));
        }
        out.extend(seeds(choices).into_iter().map(|seed| Combination { seed, ..c.clone() }));
    }
    Ok(out)
}

/// Those for which the conditions of the sweep hold.
fn chosen(spec: &SweepSpec, bases: &[Choices], all: Vec<Combination>) -> Checked<Vec<Combination>> {
    let mut names: Vec<String> = ["layout", "mesh", "seed"].map(String::from).into();
    for base in bases {
        let mine = base.dim.keys().chain(base.set.keys()).filter(|n| !names.contains(n));
        names.extend(mine.cloned().collect::<Vec<_>>());
    }
    let filter = ConditionFilter::read(&spec.only, &spec.skip, &names)?;
    let n = all.len();
    let left: Vec<Combination> = all.into_iter().filter(|c| filter.leaves(|name| c.value(name))).collect();
    if left.is_empty() && n > 0 {
        let d = wrong(format!("of {n} combinations the conditions leave none"));
        return Err(Box::new(d.help("change `--only` or `--skip`")));
    }
    Ok(left)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn spec(text: &str) -> SweepSpec {
        toml::from_str(&format!("model = \"mlp\"\n{text}")).unwrap()
    }

    fn names(text: &str) -> Vec<String> {
        combinations(&spec(text)).unwrap().iter().map(Combination::name).collect()
    }

    #[test]
    fn all_combinations_have_names_that_say_what_they_are() {
        let grid = "layout = [\"dp\", \"my/own.layout\"]\nmesh = [\"4\", \"r=2,c=2\"]\nseeds = 2\ndim.batch = [10, 50]\nset.lr = 0.1\n";
        let all = names(grid);
        assert_eq!(all.len(), 16);
        assert_eq!(all[0], "dp-4-batch=10-lr=0.1-seed=0");
        assert_eq!(all[15], "my-own-r=2-c=2-batch=50-lr=0.1-seed=1");
        let some = names(&format!(
            "only = [\"batch = 10\", \"seed < 1\"]\nskip = [\"layout = dp and mesh = 4\"]\n{grid}"
        ));
        assert_eq!(some.len(), 3, "{some:?}");
        // Another value changes no name.
        assert!(
            names(&grid.replace("[10, 50]", "[10, 50, 99]")).iter().filter(|n| all.contains(n)).count() == 16
        );
        assert_eq!(names(""), ["one-device-seed=0"]);
        assert_eq!(
            names("one_device = true\nlayout = [\"dp\", \"tp\"]\nmesh = \"2\"\n"),
            ["one-device-seed=0", "dp-2-seed=0", "tp-2-seed=0"]
        );
    }

    #[test]
    fn a_list_has_what_it_leaves_open_from_above() {
        let list = "mesh = \"4\"\ndim.batch = [10, 50]\n[[combination]]\nlayout = \"dp\"\n[[combination]]\nlayout = \"dp_tp\"\nmesh = \"2x2\"\ndim.batch = 7\n";
        assert_eq!(names(list), ["dp-4-batch=10-seed=0", "dp-4-batch=50-seed=0", "dp_tp-2x2-batch=7-seed=0"]);
    }

    #[test]
    fn trials_are_drawn_by_the_seed_and_more_of_them_change_none() {
        let search = "search = \"random\"\nlayout = [\"dp\", \"tp\"]\nset.lr = \"log:1e-4..1e-1\"\n";
        let ten = names(&format!("trials = 10\n{search}"));
        assert_eq!((ten.len(), &ten), (10, &names(&format!("trials = 10\n{search}"))));
        assert_eq!(names(&format!("trials = 20\n{search}"))[..10], ten[..]);
        assert_ne!(names(&format!("trials = 10\nsearch_seed = 1\n{search}")), ten);
        assert!(
            ten.iter().any(|n| n.starts_with("dp")) && ten.iter().any(|n| n.starts_with("tp")),
            "{ten:?}"
        );
        let of = |c: &Combination| c.sets[0].1;
        let all = combinations(&spec(&format!("trials = 200\n{search}"))).unwrap();
        // A third of them in each decade.
        let low = all.iter().filter(|c| of(c) < 1e-3).count();
        assert!(all.iter().all(|c| (1e-4..=1e-1).contains(&of(c))) && (47..87).contains(&low), "{low}");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let why = |text: &str| combinations(&spec(text)).unwrap_err().message.clone();
        assert!(why("set.lr = \"0.1..0.2\"\n").contains("is a range"));
        assert!(why("search = \"random\"\nset.lr = \"0.1..0.2\"\n").contains("how many"));
        assert!(why("skip = [\"seed >= 0\"]\n").contains("leave none"));
        assert!(why("skip = [\"batch >= 0\"]\n").contains("nothing here is called `batch`"));
        assert!(why("layout = [\"a -> b\", \"a -> b;\"]\n").contains("two combinations"));
        // Counted, not made.
        let drawn = "search = \"random\"\ntrials = 10000\nseeds = 10000\n";
        assert!(why(drawn).contains("100000000 combinations, more than 10000"));
        let lists = format!("seeds = 1000\n{}", "[[combination]]\nlayout = \"dp\"\n".repeat(101));
        assert!(why(&lists).contains("more than 10000"));
        let many: Vec<String> = (1..400).map(|n| n.to_string()).collect();
        let many = many.join(",");
        assert!(why(&format!("seeds = 10000\ndim.batch = [{many}]\n")).contains("more than 10000"));
    }
}
