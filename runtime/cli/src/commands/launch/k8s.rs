//! A Kubernetes MPIJob (kubeflow.org/v2beta1): a launcher that calls `mpirun`, and a worker a node.

use super::job::Job;
use crate::args::LaunchK8sArgs;
use crate::args::cluster::label;
use crate::stop::Stop;
use serde_json::{Value, json};

/// Longest name of a job: the operator adds `-launcher-` and five letters to it, or `-worker-` and a number, and the whole
/// is a label of at most 63.
const LONGEST_NAME: usize = 48;

/// How often a job begins again whose run goes on from its checkpoints.
const RETRIES: u32 = 3;

/// The file.
pub(super) fn file(job: &Job<'_>, args: &LaunchK8sArgs) -> Result<String, Stop> {
    let common = job.common;
    let mut limits = serde_json::Map::new();
    if !common.cpu {
        limits.insert("nvidia.com/gpu".into(), common.per_node.into());
    }
    if let Some(cores) = common.cores {
        limits.insert("cpu".into(), (cores * job.processes_per_node()).into());
    }
    if let Some(rdma) = &args.rdma {
        limits.insert(rdma.clone(), 1.into());
    }
    let (mounts, volumes) = volumes(args)?;
    let mut worker = json!({
        "name": "worker",
        "image": args.image,
        "resources": { "limits": limits },
        "volumeMounts": mounts,
        // The launcher waits until every worker is ready: until `mpirun` reaches it.
        "readinessProbe": { "tcpSocket": { "port": 22 }, "periodSeconds": 2 },
    });
    if args.rdma.is_some() {
        // Memory that an RDMA adapter reads must be locked.
        worker["securityContext"] = json!({ "capabilities": { "add": ["IPC_LOCK"] } });
    }
    // The operator's images run as root. Open MPI refuses root unless both variables are set.
    let as_root = ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"];
    let env: Vec<Value> = as_root.map(|name| json!({ "name": name, "value": "1" })).into();
    let launcher = json!({ "name": "launcher", "image": args.image, "command": mpirun(job), "env": env });
    let pod = |container: Value, volumes: Value| json!({ "spec": { "containers": [container], "volumes": volumes } });
    let name = label(&job.name).ok().filter(|name| name.len() <= LONGEST_NAME);
    let Some(name) = name else {
        let problem = format!("pods cannot be named after `{}`", job.name);
        let form = format!(
            "lowercase letters, digits and dashes that begin with a letter, at most {LONGEST_NAME} of them"
        );
        return Err(Stop::Usage(format!("{problem}: give a --name of {form}")));
    };
    let mut metadata = json!({ "name": name });
    if let Some(namespace) = &args.namespace {
        metadata["namespace"] = namespace.clone().into();
    }
    let file = json!({
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": metadata,
        "spec": {
            "launcherCreationPolicy": "WaitForWorkersReady",
            "slotsPerWorker": job.processes_per_node(),
            // When one rank fails, all end, and nothing stays behind. A run that the same command continues may fail so often.
            "runPolicy": { "cleanPodPolicy": "Running", "backoffLimit": if job.continues { RETRIES } else { 0 } },
            "mpiReplicaSpecs": {
                "Launcher": { "replicas": 1, "restartPolicy": "Never", "template": pod(launcher, json!([])) },
                "Worker": { "replicas": common.nodes, "template": pod(worker, json!(volumes)) },
            },
        },
    });
    let yaml = serde_yaml_ng::to_string(&file).map_err(|e| Stop::Usage(e.to_string()))?;
    let about: String = job.about.iter().map(|l| format!("# {l}\n")).collect();
    Ok(about + &yaml)
}

/// The command of the launcher.
fn mpirun(job: &Job<'_>) -> Vec<String> {
    let common = job.common;
    let processes = common.nodes * job.processes_per_node();
    let mut mpirun = vec!["mpirun".to_string(), "-n".into(), processes.to_string()];
    mpirun.extend(["--map-by", "slot", "--bind-to", "none"].map(String::from));
    // Seconds that other ranks have to report, after one has died.
    mpirun.extend(["--mca", "odls_base_sigkill_timeout", "5"].map(String::from));
    // Ranks start through sshd, which hands on nothing of the image's environment.
    mpirun.extend(["-x", "PATH", "-x", "LD_LIBRARY_PATH"].map(String::from));
    for (name, value, _) in job.variables() {
        mpirun.extend(["-x".into(), format!("{name}={value}")]);
    }
    // Each process sees one GPU, that of its local rank; one that has several takes them itself.
    if !common.cpu && common.devices_per_process == 1 {
        let see = "CUDA_VISIBLE_DEVICES=$OMPI_COMM_WORLD_LOCAL_RANK exec \"$0\" \"$@\"";
        mpirun.extend(["bash", "-c", see].map(String::from));
    }
    mpirun.extend(job.train.iter().cloned());
    mpirun
}

/// Where a worker mounts what, and from which volumes: shared memory for the transports, and the volumes that were asked for.
fn volumes(args: &LaunchK8sArgs) -> Result<(Vec<Value>, Vec<Value>), Stop> {
    let mut mounts = vec![json!({ "name": "shm", "mountPath": "/dev/shm" })];
    let mut volumes = vec![json!({ "name": "shm", "emptyDir": { "medium": "Memory" } })];
    for (i, (claim, path)) in args.volumes.iter().enumerate() {
        if args.volumes[..i].iter().any(|other| other.1 == *path) {
            return Err(Stop::Usage(format!("two volumes cannot both be at `{path}`")));
        }
        let name = format!("volume-{i}");
        mounts.push(json!({ "name": name, "mountPath": path }));
        volumes.push(json!({ "name": name, "persistentVolumeClaim": { "claimName": claim } }));
    }
    Ok((mounts, volumes))
}
