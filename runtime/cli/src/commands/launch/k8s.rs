//! A Kubernetes MPIJob (kubeflow.org/v2beta1): a launcher that calls `mpirun`, and a worker a node.

use super::Job;
use crate::args::LaunchK8sArgs;
use crate::stop::Stop;
use serde_json::{Value, json};

/// The file.
pub(super) fn file(job: &Job<'_>, args: &LaunchK8sArgs) -> Result<String, Stop> {
    let common = job.common;
    let processes = common.nodes * job.processes_per_node();
    let mut mpirun = vec!["mpirun".to_string(), "-n".into(), processes.to_string()];
    mpirun.extend(["--map-by", "slot", "--bind-to", "none"].map(String::from));
    for (name, value, _) in job.variables() {
        mpirun.extend(["-x".into(), format!("{name}={value}")]);
    }
    // Each process sees one GPU, that of its local rank; one that has several takes them itself.
    if !common.cpu && common.devices_per_process == 1 {
        let see = "CUDA_VISIBLE_DEVICES=$OMPI_COMM_WORLD_LOCAL_RANK exec \"$0\" \"$@\"";
        mpirun.extend(["bash", "-c", see].map(String::from));
    }
    mpirun.extend(job.train.iter().cloned());

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
    let mut mounts = vec![json!({ "name": "shm", "mountPath": "/dev/shm" })];
    let mut volumes = vec![json!({ "name": "shm", "emptyDir": { "medium": "Memory" } })];
    for (i, volume) in args.volumes.iter().enumerate() {
        let Some((claim, path)) = volume.split_once(':') else {
            return Err(Stop::Usage(format!("`{volume}` is no volume: write CLAIM:/path")));
        };
        let name = format!("volume-{i}");
        mounts.push(json!({ "name": name, "mountPath": path }));
        volumes.push(json!({ "name": name, "persistentVolumeClaim": { "claimName": claim } }));
    }
    let mut worker = json!({
        "name": "worker",
        "image": args.image,
        "resources": { "limits": limits },
        "volumeMounts": mounts,
    });
    if args.rdma.is_some() {
        // Memory that an RDMA adapter reads must be locked.
        worker["securityContext"] = json!({ "capabilities": { "add": ["IPC_LOCK"] } });
    }
    let launcher = json!({ "name": "launcher", "image": args.image, "command": mpirun });
    let pod = |container: Value, volumes: Value| json!({ "spec": { "containers": [container], "volumes": volumes } });
    let mut metadata = json!({ "name": job.name() });
    if let Some(namespace) = &args.namespace {
        metadata["namespace"] = namespace.clone().into();
    }
    let file = json!({
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": metadata,
        "spec": {
            "slotsPerWorker": job.processes_per_node(),
            // When one rank fails, all end, and nothing stays behind.
            "runPolicy": { "cleanPodPolicy": "Running", "backoffLimit": 0 },
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
