//! Model FLOPs utilization: the operations of the model in a second, as a share of what the devices reach at most.

use crate::failure::Failure;
use crate::project::Project;
use crate::training::TrainOptions;
use meshwright_core::{model_flops, training_step};
use meshwright_exec::Cluster;

/// How often a peak is measured again that a step exceeds.
const AGAIN: u32 = 3;

/// What a step computes, and what the devices could.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Utilization {
    /// See [`model_flops`].
    pub(crate) model_flops: u64,
    /// Operations a second of all devices of the mesh together: as `--peak-flops` says, or measured.
    pub(crate) peak: Option<f64>,
    /// How often it may be measured again.
    again: u32,
}

impl Utilization {
    /// Measures the peak where it is not given and the run asks for it: before the first step, never within one.
    ///
    /// # Errors
    /// Where a device fails.
    pub(crate) fn of(
        project: &Project,
        options: &TrainOptions,
        cluster: &Cluster,
    ) -> Result<Utilization, Failure> {
        let model_flops = training_step(&project.program).map_or(0, |step| model_flops(&step));
        let given = options.policies.peak_flops.map(|each| each * project.layout.mesh.devices() as f64);
        let measures = given.is_none() && options.measure_peak;
        let peak = match measures {
            true => Some(cluster.measured_peak(project.program.float)?),
            false => given,
        };
        // Later, other processes wait: what they share with this one would be its own.
        let again = if measures && cluster.processes().count() == 1 { AGAIN } else { 0 };
        Ok(Utilization { model_flops, peak, again })
    }

    /// Checks whether a step of this time in seconds computed more than the peak allows. Then the peak was measured while the
    /// machine was busy, and is measured again; where that does not help, or it was given, it is not known. Gives what the user
    /// should know.
    ///
    /// # Errors
    /// Those of measuring.
    pub(crate) fn review<E>(
        &mut self,
        seconds: f64,
        measure: impl FnOnce() -> Result<f64, E>,
    ) -> Result<Option<String>, E> {
        let reached = self.model_flops as f64 / seconds;
        let Some(peak) = self.peak.filter(|peak| reached > *peak) else { return Ok(None) };
        if self.again > 0 {
            self.again -= 1;
            self.peak = Some(measure()?.max(peak));
            return Ok(None);
        }
        self.peak = None;
        Ok(Some(format!(
            "a step computed {reached:.3e} operations a second, and the peak is {peak:.3e}: that is too low, and MFU is not known from \
             here on; `--peak-flops` says what a device reaches at most"
        )))
    }

    /// The share of the peak at a number of steps a second; none where it is not known, as that of a step that exceeds it.
    pub(crate) fn share(&self, steps_per_second: f64) -> Option<f64> {
        let share = self.model_flops as f64 * steps_per_second / self.peak?;
        (share <= 1.0).then_some(share)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_peak_that_a_step_exceeds_is_measured_again_or_not_known() {
        let never = || -> Result<f64, ()> { panic!("nothing is to be measured") };
        let mut u = Utilization { model_flops: 100, peak: Some(50.0), again: 2 };
        assert_eq!((u.review(2.0, never), u.share(0.5)), (Ok(None), Some(1.0)));
        // Twice as fast as the peak: it was 80 all the time.
        assert_eq!((u.share(1.0), u.review(1.0, || Ok::<_, ()>(80.0))), (None, Ok(None)));
        assert_eq!((u.peak, u.share(0.5)), (Some(80.0), Some(0.625)));
        // The second time it is not larger, and the third time nothing is measured.
        assert_eq!((u.review(1.0, || Ok::<_, ()>(60.0)), u.peak), (Ok(None), Some(80.0)));
        let told = u.review(1.0, never).unwrap().unwrap();
        assert!(told.contains("MFU is not known"), "{told}");
        assert_eq!((u.peak, u.share(0.5), u.review(1.0, never)), (None, None, Ok(None)));
    }
}
