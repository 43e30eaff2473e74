//! Files for clusters: what is written, what a shell and a YAML reader make of it, and what is refused.

use crate::support::{command, folder, lines, linted, run, said};
use serde_json::Value;
use std::process::Command;

const PLAN: [&str; 6] = ["mlp", "--layout", "batch -> r; hidden -> c", "--mesh", "r=2,c=2", "--nodes"];

fn launch(kind: &str, rest: &[&str]) -> (i32, String, String) {
    let args: Vec<&str> = [&["launch", kind], &PLAN[..], rest].concat();
    run(&args)
}

/// The batch file is run, with an `srun` that plays two tasks: each must call the training with the words that were
/// given, blanks and all, and see the GPU of its local rank only.
#[test]
fn a_slurm_file_runs_the_training_on_every_task() {
    let at = folder("launch-slurm");
    let args = ["2", "--per-node", "2", "--partition", "gpu", "--", "--run", "a folder"];
    let (code, text, err) = launch("slurm", &args);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(text.contains("#SBATCH --no-requeue\n"), "{text}");
    // One command that starts or continues serves a job that is requeued; directives of the user are passed through.
    let (_, again, _) = launch(
        "slurm",
        &[&["2", "--per-node", "2", "--sbatch", "--mail-type=END"], &args[5..], &["--resume=auto"]].concat(),
    );
    assert!(
        again.contains("#SBATCH --requeue\n")
            && !again.contains("no-requeue")
            && again.contains("#SBATCH --mail-type=END\n"),
        "{again}"
    );
    for line in ["--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=2", "--partition=gpu"] {
        assert!(text.lines().any(|l| l == format!("#SBATCH {line}")), "{line} in {text}");
    }
    for script in [&text, &again] {
        assert_eq!(linted(script), "", "{script}");
    }
    std::fs::write(at.join("job"), text).unwrap();
    let script = |name: &str, body: &str| {
        use std::os::unix::fs::PermissionsExt;
        let path = at.join(name);
        std::fs::write(&path, format!("#!/bin/bash\n{body}")).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    script(
        "srun",
        "while [[ $1 == --* ]]; do shift; done\nSLURM_LOCALID=0 \"$@\" && SLURM_LOCALID=1 \"$@\"\n",
    );
    script("meshwright", "printf '%s|' \"$CUDA_VISIBLE_DEVICES\" \"$@\"; echo\n");
    let path = format!("{}:{}", at.display(), std::env::var("PATH").unwrap());
    // The GPUs of the node are all the job's, or some of them.
    for (given, seen) in [("", ["0", "1"]), ("4,6", ["4", "6"]), ("GPU-a,GPU-b", ["GPU-a", "GPU-b"])] {
        let mut job = Command::new("bash");
        job.arg(at.join("job")).env("PATH", &path).env("CUDA_VISIBLE_DEVICES", given);
        let output = job.output().unwrap();
        let rank = |n| {
            format!(
                "{n}|train|mlp|--layout|batch -> r; hidden -> c|--mesh|r=2,c=2|--device|cuda|--run|a folder|\n"
            )
        };
        assert_eq!(String::from_utf8(output.stdout).unwrap(), rank(seen[0]) + &rank(seen[1]));
    }
}

/// What the file begins with has the step's time where a machine is named.
#[test]
fn a_machine_gives_the_time_of_a_step() {
    let at = folder("launch-machine");
    let file = at.join("job");
    let args = ["2", "--per-node", "2", "--machine", "dgx-h100", "--output", file.to_str().unwrap()];
    let (code, out, err) = launch("slurm", &args);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let text = std::fs::read_to_string(&file).unwrap();
    let line = text.lines().find(|l| l.contains("# a step takes ")).unwrap_or_else(|| panic!("{text}"));
    assert!(line.contains("us +- 15 %") && line.ends_with("on DGX H100 80 GB"), "{line}");
    assert!(out.contains(line.trim_start_matches("# ")), "{out}");
    let (_, out, _) = launch("slurm", &[&args[..], &["--force", "--format", "json"]].concat());
    let estimate = &lines(&out)[0]["estimate"];
    assert!(estimate["seconds"].as_f64().unwrap() > 0.0, "{out}");
    let (code, _, err) = launch("slurm", &[&args[..4], &["dgx-h10"]].concat());
    assert!(code == 1 && err.contains("E0515"), "{err}");
    let (_, out, _) = launch("slurm", &[&args[..3], &args[5..], &["--force", "--format", "json"]].concat());
    assert_eq!(lines(&out)[0]["estimate"], Value::Null);
}

/// A machine of the environment is named for all commands: where it gives no estimate the job is written all the same, with a
/// note. One that cannot be read is a mistake.
#[test]
fn a_machine_of_the_environment_does_not_stop_a_job() {
    let at = folder("launch-environment");
    let (job, machine) = (at.join("job"), at.join("fast.toml"));
    let model = ["llama", "--precision", "bf16", "--layout", "batch -> data", "--mesh", "data=2"];
    let sizes = ["layers=8", "d_ff=1024", "vocab=1024", "seq=65536", "batch=2"];
    let written = |named: &[&str]| {
        let mut c = command(&["launch", "slurm"]);
        c.args(model).args(sizes.iter().flat_map(|size| ["--dim", size]));
        c.args(["--nodes", "1", "--per-node", "2", "--force", "--output"]).arg(&job).args(named);
        said(c.env("MESHWRIGHT_MACHINE", &machine).output().unwrap())
    };
    let (_, text, _) = run(&["machines", "dgx-h100"]);
    std::fs::write(&machine, &text).unwrap();
    let (code, out, err) = written(&[]);
    assert!(code == 0 && out.contains("a step takes "), "{out}{err}");
    // Attention a thousand times as fast as tensor cores are.
    std::fs::write(&machine, text.replace("370e12", "990e15").replace("300e12", "990e15")).unwrap();
    let (code, out, err) = written(&[]);
    assert!(code == 0 && !out.contains("a step takes "), "{out}{err}");
    assert!(err.contains("no estimate") && err.contains("(MESHWRIGHT_MACHINE): "), "{err}");
    let (code, _, err) = written(&["--machine", machine.to_str().unwrap()]);
    assert!(code == 1 && err.contains("E0531") && err.contains("faster than the peak"), "{err}");
    std::fs::write(&machine, "[device").unwrap();
    let (code, _, err) = written(&[]);
    assert!(code == 1 && err.contains("E0531") && err.contains("fast.toml"), "{err}");
}

/// A mistake would end the job only when the cluster has begun it, hours later.
#[test]
fn what_the_nodes_would_refuse_is_refused_here() {
    let plan = ["2", "--per-node", "2"];
    for (rest, says) in [
        (&["--", "--stepz", "10"][..], "--stepz"),
        (&["--", "--mesh", "r=4"], "cannot be used multiple times"),
        (&["--", "--devices-per-process", "2"], "before the `--`"),
        (&["--time", "24h"], "not a time in Slurm's format"),
        (&["--partition", "gpu\n#SBATCH --exclusive"], "a word without blanks"),
        (&["--env", "1=2"], "not a valid name of a variable"),
    ] {
        let (code, out, err) = launch("slurm", &[&plan[..], rest].concat());
        assert!(code == 2 && out.is_empty() && err.contains(says), "{rest:?}: {code} {out} {err}");
    }
    for (rest, says) in [
        (&["--name", "2024-run"][..], "begin with a letter"),
        (&["--volume", "a:/x", "--volume", "b:/x"], "two volumes"),
        (&["--volume", "a:x"], "an absolute path"),
        (&["--rdma", "hca"], "`DOMAIN/NAME`"),
        (&["--namespace", "My NS"], "lowercase letters"),
    ] {
        let image = ["--image", "local/mw:1"];
        let (code, out, err) = launch("k8s", &[&plan[..], &image, rest].concat());
        assert!(code == 2 && out.is_empty() && err.contains(says), "{rest:?}: {code} {out} {err}");
    }
    // What the training is told decides whether it fits.
    let (code, _, err) = launch("slurm", &["2", "--per-node", "2", "--", "--precision", "f64"]);
    assert!(code == 1 && err.contains("f64"), "{err}");
}

#[test]
fn variables_reach_every_process() {
    let args = ["2", "--per-node", "2", "--env", "MESHWRIGHT_DATA=/my data", "--env", "NCCL_DEBUG=INFO"];
    let (code, text, _) = launch("slurm", &[&args[..], &["--cores", "8"]].concat());
    assert!(code == 0 && text.contains("export MESHWRIGHT_DATA='/my data'"), "{text}");
    assert!(text.contains("export NCCL_DEBUG=INFO") && !text.contains("WARN"), "{text}");
    assert!(text.contains("srun --mpi=pmix --kill-on-bad-exit=1 --cpus-per-task=8"), "{text}");
    let (code, text, _) = launch("k8s", &[&args[..], &["--image", "local/mw:1"]].concat());
    assert!(code == 0 && text.contains("- MESHWRIGHT_DATA=/my data"), "{text}");
}

#[test]
fn a_process_may_have_all_gpus_of_its_node() {
    let args = ["2", "--per-node", "2", "--devices-per-process", "2"];
    let (code, text, err) = launch("slurm", &args);
    assert_eq!((code, err.as_str(), linted(&text)), (0, "", String::new()));
    for part in
        ["--ntasks-per-node=1", "--gpus-per-node=2", "2 GPUs each, 2 in a process", "--devices-per-process 2"]
    {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(!text.contains("CUDA_VISIBLE_DEVICES"), "{text}");
    let (code, text, _) = launch("k8s", &[&args[..], &["--image", "local/mw:1"]].concat());
    let file: serde_yaml_ng::Value = serde_yaml_ng::from_str(&text).unwrap();
    assert_eq!((code, &file["spec"]["slotsPerWorker"]), (0, &1.into()));
    let (code, _, err) = launch("slurm", &["1", "--per-node", "4", "--devices-per-process", "3"]);
    assert!(code == 1 && err.contains("`--devices-per-process 4`"), "{err}");
}

/// A job begins again where its run goes on.
#[test]
fn a_kubernetes_job_begins_again_where_its_run_goes_on() {
    let args = ["2", "--per-node", "2", "--image", "local/mw:1", "--", "--run", "/runs/a"];
    for (more, limit) in [(&[][..], 0), (&["--resume=auto"], 3)] {
        let (code, text, err) = launch("k8s", &[&args[..], more].concat());
        let file: serde_yaml_ng::Value = serde_yaml_ng::from_str(&text).unwrap();
        assert_eq!((code, &file["spec"]["runPolicy"]["backoffLimit"]), (0, &limit.into()), "{err}");
    }
}

#[test]
fn a_kubernetes_file_is_an_mpi_job() {
    let args =
        ["2", "--per-node", "2", "--image", "local/mw:1", "--volume", "runs:/runs", "--rdma", "rdma/hca"];
    let (code, text, err) = launch("k8s", &args);
    assert_eq!((code, err.as_str()), (0, ""));
    let file: serde_yaml_ng::Value = serde_yaml_ng::from_str(&text).unwrap();
    assert_eq!(file["apiVersion"], "kubeflow.org/v2beta1");
    assert_eq!(file["kind"], "MPIJob");
    let spec = &file["spec"];
    assert_eq!(spec["slotsPerWorker"], 2);
    // `mpirun` is called when it reaches every worker, and may be root.
    assert_eq!(spec["launcherCreationPolicy"], "WaitForWorkersReady");
    let launcher = &spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0];
    assert_eq!(launcher["env"][0]["name"], "OMPI_ALLOW_RUN_AS_ROOT");
    let worker = &spec["mpiReplicaSpecs"]["Worker"];
    assert_eq!(worker["replicas"], 2);
    let container = &worker["template"]["spec"]["containers"][0];
    assert_eq!(container["resources"]["limits"]["nvidia.com/gpu"], 2);
    assert_eq!(container["volumeMounts"][1]["mountPath"], "/runs");
    assert_eq!(container["readinessProbe"]["tcpSocket"]["port"], 22);
    let command = &spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["command"];
    let words: Vec<&str> = command.as_sequence().unwrap().iter().map(|w| w.as_str().unwrap()).collect();
    assert_eq!(words[..3], ["mpirun", "-n", "4"]);
    assert!(words.windows(2).any(|w| w == ["--layout", "batch -> r; hidden -> c"]), "{words:?}");
}

#[test]
fn what_does_not_fit_is_refused_with_a_way_out() {
    let (code, out, err) = launch("slurm", &["3", "--per-node", "2"]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("4 devices") && err.contains("3 nodes with 2 each have 6"), "{err}");
    assert!(err.contains("`--nodes 2`") && err.contains("`--mesh r=3,c=2`"), "{err}");

    let (code, out, err) = launch("slurm", &["2", "--per-node", "2", "--memory", "1MiB"]);
    assert!(
        code == 1 && out.is_empty() && err.contains("and 1.00 MiB are available on each device"),
        "{err}"
    );
    let (code, _, err) = launch("slurm", &["2", "--per-node", "2", "--precision", "f64"]);
    assert!(code == 1 && err.contains("f64"), "{err}");
    let (code, out, _) = launch("slurm", &["2", "--per-node", "2", "--precision", "f64", "--cpu"]);
    assert!(code == 0 && !out.contains("CUDA") && out.contains("--device cpu"), "{out}");
}

#[test]
fn a_file_is_not_written_over_unasked() {
    let at = folder("launch-output").join("job.sbatch");
    let path = at.to_str().unwrap();
    let args = ["2", "--per-node", "2", "-o", path];
    let (code, out, _) = launch("slurm", &args);
    assert!(code == 0 && out.contains(&format!("sbatch {path}")), "{out}");
    let before = std::fs::read(&at).unwrap();
    let (code, _, err) = launch("slurm", &args);
    assert!(code == 1 && err.contains("exists already") && err.contains("--force"), "{err}");
    assert_eq!(std::fs::read(&at).unwrap(), before);
    assert_eq!(launch("slurm", &[&args[..], &["--force"]].concat()).0, 0);
}

/// What stands in a loop counts as often as it runs, whichever command says so.
#[test]
fn every_command_says_the_same_bytes_of_a_step() {
    let file = folder("launch-bytes").join("job");
    let model = ["gpt", "--preset", "tiny", "--mesh", "data=4"];
    let json = |command: &[&str], layout: &[&str], more: &[&str]| -> Value {
        let (code, out, err) = run(&[command, &model, layout, &["--format", "json"], more].concat());
        assert_eq!(code, 0, "{command:?}: {err}");
        lines(&out).remove(0)
    };
    let layout = ["--layout", "zero3"];
    let explained = json(&["explain"], &layout, &[]);
    let all = |values: &Value, of: &str| -> u64 {
        values.as_array().unwrap().iter().map(|v| v[of].as_u64().unwrap()).sum()
    };
    let collectives = explained["collectives"].as_array().unwrap();
    let of_loops = |c: &Value| c["times"].as_u64().unwrap() * c["bytes"].as_u64().unwrap();
    let bytes: u64 = collectives.iter().map(of_loops).sum();
    assert!(collectives.iter().any(|c| c["times"].as_u64().unwrap() > 1), "{explained}");
    let count = all(&explained["totals"], "count");

    let nodes = ["--nodes", "2", "--per-node", "2", "-o", file.to_str().unwrap()];
    let launched = json(&["launch", "slurm"], &layout, &nodes);
    let checked = json(&["check"], &layout, &[]);
    let compared = json(&["compare"], &["--layout", "", "--layout", "zero3"], &[]);
    let said = [
        explained["per_device"]["collective_bytes"].as_u64().unwrap(),
        all(&explained["totals"], "bytes"),
        all(&launched["communication"], "bytes"),
        checked["collective_bytes"].as_u64().unwrap(),
        compared["variants"][1]["per_device"]["collective_bytes"].as_u64().unwrap(),
        all(&compared["differences"][0]["changes"], "bytes_after"),
    ];
    assert_eq!(said, [bytes; 6]);
    assert_eq!(
        [checked["collectives"].as_u64(), compared["variants"][1]["collectives"].as_u64()],
        [Some(count); 2]
    );
    assert_eq!(launched["communication"][0]["between_nodes"], true);
}

/// Lines that make a plan fit are named, and they do.
#[test]
fn what_does_not_fit_the_memory_of_a_device_is_told_what_would() {
    let model = ["gpt", "--preset", "tiny", "--dim", "batch=64", "--mesh", "data=4", "--layout"];
    let check = |layout: &str, more: &[&str]| run(&[&["check"], &model[..], &[layout], more].concat());
    let (_, out, _) = check("dp", &["--format", "json"]);
    let peak = lines(&out)[0]["peak_bytes"].as_u64().unwrap();
    for (part, word) in [(0.95, "moments"), (0.4, "microbatches")] {
        let memory = format!("{}", (peak as f64 * part) as u64);
        let nodes = ["--memory", &memory, "--nodes", "2", "--per-node", "2"];
        let launched = run(&[&["launch", "slurm"], &model[..], &["dp"], &nodes].concat());
        let several = check("dp", &["--layout", "zero3", "--memory", &memory]);
        let one = check("dp", &["--memory", &memory]);
        for ((code, _, err), device) in [(one, "cpu"), (launched, "cuda"), (several, "cpu")] {
            assert!(code == 1 && err.contains("error[E0401]") && err.contains("the largest are `"), "{err}");
            let help = err.lines().find(|l| l.contains("with this in the layout it fits, in ")).unwrap();
            let named: Vec<&str> = help.split('`').skip(1).step_by(2).collect();
            assert!(named.iter().any(|line| line.starts_with(word)), "{help}");
            let layout = format!("batch -> data; {}", named.join("; "));
            let (code, _, err) = check(&layout, &["--memory", &memory, "--device", device]);
            assert_eq!(code, 0, "{layout}: {err}");
        }
        let args = [&["compare"], &model[..], &["dp", "--memory", &memory]].concat();
        let (code, out, err) = run(&[&args[..], &["--format", "json"]].concat());
        assert_eq!(code, 0, "{err}");
        let compared = &lines(&out)[0]["variants"][0]["memory"];
        assert_eq!(compared["fits"], false);
        assert!(compared["peak_with"].as_u64().unwrap() <= memory.parse().unwrap(), "{compared}");
        let with: Vec<&str> =
            compared["fits_with"].as_array().unwrap().iter().map(|l| l.as_str().unwrap()).collect();
        let (_, table, _) = run(&args);
        assert!(table.lines().any(|l| l.ends_with(&format!("  no    {}", with.join("; ")))), "{table}");
        let (_, csv, _) = run(&[&args[..], &["--format", "csv"]].concat());
        assert!(
            csv.contains(",fits,fits_with\n") && csv.contains(&format!(",no,{}", with.join("; "))),
            "{csv}"
        );
    }
    // A GPU never makes some of the values: it is not refused for their bytes, with which a CPU is.
    let (_, out, _) =
        run(&[&["explain"], &model[..], &["dp", "--device", "cuda", "--format", "json"]].concat());
    let on_gpu = lines(&out)[0]["device"]["peak_bytes"].to_string();
    assert!(on_gpu.parse::<u64>().unwrap() < peak, "{on_gpu} {peak}");
    let memory = ["--memory", &on_gpu];
    let on = |device| check("dp", &[&memory[..], &["--device", device]].concat()).0;
    assert_eq!((on("cuda"), on("cpu"), check("dp", &memory).0), (0, 1, 1));
    let launch = |more: &[&str]| {
        let nodes = ["--nodes", "2", "--per-node", "2"];
        run(&[&["launch", "slurm"], &model[..], &["dp"], &memory, &nodes, more].concat()).0
    };
    assert_eq!((launch(&[]), launch(&["--cpu"])), (0, 1));
    let fits = |device| {
        let args = ["dp", "--device", device, "--format", "json"];
        let (_, out, _) = run(&[&["compare"], &model[..], &args, &memory].concat());
        lines(&out)[0]["variants"][0]["memory"]["fits"].clone()
    };
    assert_eq!((fits("cuda"), fits("cpu")), (true.into(), false.into()));
    // Where it fits, nothing is said; where no line helps, a smaller batch is.
    assert_eq!(check("dp", &["--memory", "80GiB"]).0, 0);
    let (code, _, err) = check("dp", &["--memory", "1KiB"]);
    assert!(code == 1 && err.contains("take a smaller batch"), "{err}");
}

#[test]
fn compare_takes_lists_as_a_sweep_does() {
    let (code, out, err) =
        run(&["compare", "mlp", "--layout", "dp,zero3", "--mesh", "2,4", "--format", "json"]);
    assert_eq!(code, 0, "{err}");
    let all = &lines(&out)[0]["variants"];
    let of = |v: &Value| (v["layout"].as_str().unwrap().to_string(), v["devices"].as_u64().unwrap());
    let found: Vec<(String, u64)> = all.as_array().unwrap().iter().map(of).collect();
    let expected = [("dp", 2), ("zero3", 2), ("dp", 4), ("zero3", 4)].map(|(l, n)| (l.to_string(), n));
    assert_eq!(found, expected);
    // Rules are one layout, commas and all.
    let (code, out, err) = run(&[
        "compare",
        "mlp",
        "--layout",
        "batch -> pod, data",
        "--mesh",
        "pod=2,data=2",
        "--format",
        "json",
    ]);
    assert!(code == 0 && lines(&out)[0]["variants"].as_array().unwrap().len() == 1, "{err}");
}
