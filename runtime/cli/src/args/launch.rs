//! The options of `launch`.

use super::{FormatArgs, MachineArgs, MemoryArgs, ProjectArgs, cluster};
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Args, Debug)]
pub(crate) struct LaunchArgs {
    #[command(subcommand)]
    pub(crate) what: LaunchWhat,
}

#[derive(Subcommand, Debug)]
pub(crate) enum LaunchWhat {
    /// Write a Slurm batch file, with one task for each device (or for --devices-per-process of them).
    #[command(after_help = "\
Examples:
  meshwright launch slurm mnist_mlp --layout dp_tp --mesh data=4,model=8 --nodes 4 --per-node 8 -o mnist.sbatch
  meshwright launch slurm mnist_mlp --layout dp --mesh data=8 --nodes 2 --per-node 4 --partition gpu --module cuda/12.6 \\
      --memory 80GiB --machine dgx-a100-80g -- --steps 10000 --run /scratch/me/mnist --resume=auto

Arguments after `--` are passed to `meshwright train` and checked here. A plan that does not fit the nodes is an error. With
`--resume=auto` the job may be requeued: it then continues the run.")]
    Slurm(LaunchSlurmArgs),
    /// Write a Kubernetes MPIJob, for the MPI operator.
    #[command(after_help = "\
Examples:
  meshwright launch k8s mnist_mlp --layout dp_tp --mesh data=4,model=8 --nodes 4 --per-node 8 --image registry.local/meshwright:1 \\
      --volume runs:/runs -o mnist.yaml -- --steps 10000 --run /runs/mnist
  kubectl apply -f mnist.yaml

Files of models and layouts must be in the image or on a volume.")]
    K8s(LaunchK8sArgs),
}

impl LaunchWhat {
    pub(crate) fn common(&self) -> &LaunchCommon {
        match self {
            LaunchWhat::Slurm(a) => &a.common,
            LaunchWhat::K8s(a) => &a.common,
        }
    }

    /// The command that starts a file.
    pub(crate) fn start(&self, file: &std::path::Path) -> String {
        match self {
            LaunchWhat::Slurm(_) => format!("sbatch {}", file.display()),
            LaunchWhat::K8s(_) => format!("kubectl apply -f {}", file.display()),
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct LaunchCommon {
    #[command(flatten)]
    pub(crate) project: ProjectArgs,
    /// Number of nodes.
    #[arg(long, value_name = "N", help_heading = "Job", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) nodes: u32,
    /// GPUs to use on each node; with --cpu, devices on each node.
    #[arg(long, value_name = "N", help_heading = "Job", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) per_node: u32,
    /// GPUs (or devices) in each process; must divide --per-node.
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Job", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) devices_per_process: u32,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
    /// Train on CPUs instead of GPUs.
    #[arg(long, help_heading = "Job")]
    pub(crate) cpu: bool,
    /// CPU cores for each process.
    #[arg(long, value_name = "N", help_heading = "Job", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) cores: Option<u32>,
    /// Name of the job [default: the name of the model]
    #[arg(long, help_heading = "Job", value_parser = cluster::word)]
    pub(crate) name: Option<String>,
    /// Path of `meshwright` on the nodes.
    #[arg(long, value_name = "PATH", default_value = "meshwright", help_heading = "Job")]
    pub(crate) program: String,
    /// Network interface that ranks use to connect, such as ib0 (NCCL_SOCKET_IFNAME).
    #[arg(long, value_name = "NAME", help_heading = "Job", value_parser = cluster::word)]
    pub(crate) interface: Option<String>,
    /// RDMA adapters for the data, such as mlx5 (NCCL_IB_HCA).
    #[arg(long, value_name = "NAMES", help_heading = "Job", value_parser = cluster::word)]
    pub(crate) hca: Option<String>,
    /// Environment variable of every process, such as MESHWRIGHT_DATA=/data; may be repeated.
    #[arg(long = "env", value_name = "NAME=VALUE", help_heading = "Job", value_parser = cluster::variable)]
    pub(crate) variables: Vec<(String, String)>,
    /// File to write [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite an existing file.
    #[arg(long, requires = "output")]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
    /// More arguments of `meshwright train`.
    #[arg(last = true, value_name = "TRAIN ARGS", allow_hyphen_values = true)]
    pub(crate) train: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct LaunchSlurmArgs {
    #[command(flatten)]
    pub(crate) common: LaunchCommon,
    /// Time limit, in Slurm's format.
    #[arg(long, default_value = "24:00:00", help_heading = "Slurm", value_parser = cluster::time)]
    pub(crate) time: String,
    /// Partition.
    #[arg(long, help_heading = "Slurm", value_parser = cluster::word)]
    pub(crate) partition: Option<String>,
    /// Account.
    #[arg(long, help_heading = "Slurm", value_parser = cluster::word)]
    pub(crate) account: Option<String>,
    /// Quality of service.
    #[arg(long, help_heading = "Slurm", value_parser = cluster::word)]
    pub(crate) qos: Option<String>,
    /// More options of `#SBATCH` lines, such as '--mail-type=END'; may be repeated.
    #[arg(long, value_name = "OPTION", help_heading = "Slurm", allow_hyphen_values = true, value_parser = cluster::directive)]
    pub(crate) sbatch: Vec<String>,
    /// Module to load; may be repeated.
    #[arg(long = "module", value_name = "NAME", help_heading = "Slurm")]
    pub(crate) modules: Vec<String>,
    /// The --mpi option of srun; `srun --mpi=list` lists its values.
    #[arg(long, default_value = "pmix", help_heading = "Slurm", value_parser = cluster::word)]
    pub(crate) mpi: String,
}

#[derive(Args, Debug)]
pub(crate) struct LaunchK8sArgs {
    #[command(flatten)]
    pub(crate) common: LaunchCommon,
    /// Container image with meshwright, Open MPI and an SSH server.
    #[arg(long, help_heading = "Kubernetes", value_parser = cluster::word)]
    pub(crate) image: String,
    /// Namespace.
    #[arg(long, help_heading = "Kubernetes", value_parser = cluster::label)]
    pub(crate) namespace: Option<String>,
    /// Volume for data and runs, CLAIM:/path; may be repeated. With several nodes its access mode must be ReadWriteMany.
    #[arg(long = "volume", value_name = "CLAIM:/PATH", help_heading = "Kubernetes", value_parser = cluster::volume)]
    pub(crate) volumes: Vec<(String, String)>,
    /// Resource name of an RDMA adapter, such as rdma/hca.
    #[arg(long, value_name = "RESOURCE", help_heading = "Kubernetes", value_parser = cluster::resource)]
    pub(crate) rdma: Option<String>,
}
