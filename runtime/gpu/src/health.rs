//! State of a GPU after a failure: its memory, the errors of its memory, and the driver's critical errors (Xid).

/// Memory of a GPU in bytes, for all processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Its total.
    pub total: u64,
    /// Free bytes.
    pub free: u64,
}

/// Errors of a GPU's memory that could not be corrected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EccErrors {
    /// Since the driver was loaded, or the GPU was reset.
    pub volatile: u64,
    /// In the lifetime of the GPU.
    pub aggregate: u64,
}

/// Rows of a GPU's memory that are broken, and that spare rows replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemappedRows {
    /// Rows replaced because of errors that could not be corrected.
    pub uncorrected: u64,
    /// Whether some will be replaced only when the GPU is reset.
    pub pending: bool,
    /// Whether there are no spare rows left.
    pub failed: bool,
}

/// Faults of a GPU by NVML.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuHealth {
    /// Whether the driver cannot reach the GPU any more.
    pub lost: bool,
    /// Errors of its memory; none where the GPU does not count them.
    pub ecc: Option<EccErrors>,
    /// Rows of its memory that were replaced; none where the GPU replaces none.
    pub rows: Option<RemappedRows>,
    /// Numbers of the critical errors (Xid) that the driver has reported since the GPU was opened, each once.
    pub xids: Vec<u64>,
}

impl GpuHealth {
    /// Its faults, a sentence each; none if none is known.
    pub fn findings(&self) -> Vec<String> {
        let mut all = vec![];
        if self.lost {
            all.push("NVML cannot reach the GPU any more".to_string());
        }
        all.extend(self.xids.iter().map(|xid| match xid_meaning(*xid) {
            Some(meaning) => format!("the driver reported Xid {xid}, {meaning}"),
            None => format!("the driver reported Xid {xid}"),
        }));
        if let Some(EccErrors { volatile, aggregate }) = self.ecc
            && aggregate.max(volatile) > 0
        {
            all.push(format!(
                "its memory had {volatile} uncorrected ECC errors since the driver was loaded, {aggregate} in its life"
            ));
        }
        if let Some(rows) = self.rows {
            if rows.pending {
                all.push("broken rows of its memory will be replaced when it is reset".to_string());
            }
            if rows.failed {
                all.push("its memory has no spare rows left for broken ones".to_string());
            }
        }
        all
    }

    /// Remedies, most urgent first; none if no fault is known.
    pub fn advice(&self) -> Vec<&'static str> {
        let broken_memory = self.ecc.is_some_and(|e| e.volatile > 0)
            || self.rows.is_some_and(|r| r.pending || r.failed)
            || self.xids.iter().any(|xid| MEMORY_XIDS.contains(xid));
        let mut all = vec![];
        if self.lost || self.xids.contains(&FELL_OFF_THE_BUS) {
            all.push(
                "restart the machine; if the GPU falls off the bus again, check its power, cooling and seat, and have it replaced",
            );
        }
        if broken_memory {
            all.push(
                "the memory of the GPU is at fault, not the program: reset the GPU (`nvidia-smi --gpu-reset`) or restart the machine, \
                 and keep jobs off it if the errors come back (`nvidia-smi -q -d ECC,ROW_REMAPPER`)",
            );
        }
        if self.xids.iter().any(|xid| PROGRAM_XIDS.contains(xid)) && !broken_memory {
            all.push(
                "this Xid is as a rule a bug of a program: run it on the CPU (`--device cpu`) or with MESHWRIGHT_CUBLASLT=none to compare, \
                 and please report it; if other programs fail on this GPU too, suspect the hardware",
            );
        }
        all
    }
}

const FELL_OFF_THE_BUS: u64 = 79;
const MEMORY_XIDS: [u64; 5] = [48, 63, 64, 94, 95];
const PROGRAM_XIDS: [u64; 3] = [13, 31, 43];

/// The meaning of the most frequent Xid errors in NVIDIA's list.
fn xid_meaning(xid: u64) -> Option<&'static str> {
    Some(match xid {
        13 => "an error of a kernel, such as an access out of bounds",
        31 => "an access of a kernel to memory that is not mapped",
        43 => "a kernel that was stopped after an error",
        48 => "an ECC error of memory that could not be corrected",
        63 => "a broken row of memory that is now marked for replacement",
        64 => "a broken row of memory that could not be marked for replacement",
        FELL_OFF_THE_BUS => "the GPU has fallen off the bus",
        94 => "an ECC error of memory that was contained: only the program that met it is affected",
        95 => "an ECC error of memory that was not contained",
        _ => return None,
    })
}
