//! The numbers of machines that times depend on.

use meshwright_cost::machine::{InNetwork, Machine, NetworkLine, SCALAR_FAMILIES, StreamRates};
use std::sync::LazyLock;

/// What a number means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NumberKind {
    /// Bytes or operations per second.
    Rate,
    /// Seconds.
    Seconds,
    /// A part of a rate.
    Part,
    /// Without a unit of time; less is faster.
    Burden,
}

/// Where a machine has a number.
type Places = Box<dyn for<'m> Fn(&'m mut Machine) -> Vec<&'m mut f64> + Send + Sync>;

/// A number of machine files, at all places where a machine has it.
pub(super) struct MachineNumber {
    pub(super) name: String,
    pub(super) kind: NumberKind,
    /// Of the network, or of a device.
    pub(super) network: bool,
    places: Places,
}

impl MachineNumber {
    /// Changes it wherever the machine has it.
    pub(super) fn change(&self, machine: &mut Machine, with: impl Fn(f64) -> f64) {
        for place in (self.places)(machine) {
            *place = with(*place);
        }
    }

    /// Changes it given what another machine has in the same places.
    pub(super) fn change_by(&self, machine: &mut Machine, other: &Machine, with: fn(f64, f64) -> f64) {
        let mut other = other.clone();
        for (place, other) in (self.places)(machine).into_iter().zip((self.places)(&mut other)) {
            *place = with(*place, *other);
        }
    }

    /// Whether it scales with the speed of a machine.
    pub(super) fn has_time(&self) -> bool {
        matches!(self.kind, NumberKind::Rate | NumberKind::Seconds)
    }
}

/// The machine with a number that is better by a factor.
pub(super) fn better(machine: &Machine, number: &MachineNumber, factor: f64) -> Machine {
    let mut machine = machine.clone();
    let more = matches!(number.kind, NumberKind::Rate | NumberKind::Part);
    number.change(&mut machine, |x| if more { x * factor } else { x / factor });
    machine
}

/// The machine that is faster by a factor in all that has a time.
pub(super) fn faster(machine: &Machine, factor: f64) -> Machine {
    NUMBERS.iter().filter(|n| n.has_time()).fold(machine.clone(), |m, n| better(&m, n, factor))
}

/// The machine with a network, or devices, that take no time.
pub(super) fn without_limits(machine: &Machine, network: bool) -> Machine {
    let mut machine = machine.clone();
    for number in NUMBERS.iter().filter(|n| n.network == network && n.has_time()) {
        number.change(&mut machine, |_| if number.kind == NumberKind::Rate { 1e30 } else { 0.0 });
    }
    machine
}

fn number(
    name: impl Into<String>,
    kind: NumberKind,
    network: bool,
    places: impl for<'m> Fn(&'m mut Machine) -> Vec<&'m mut f64> + Send + Sync + 'static,
) -> MachineNumber {
    MachineNumber { name: name.into(), kind, network, places: Box::new(places) }
}

fn of_device(
    name: &str,
    kind: NumberKind,
    places: impl for<'m> Fn(&'m mut Machine) -> Vec<&'m mut f64> + Send + Sync + 'static,
) -> MachineNumber {
    number(format!("device.{name}"), kind, false, places)
}

fn of_line(
    name: &str,
    kind: NumberKind,
    place: impl for<'m> Fn(&'m mut NetworkLine) -> Option<&'m mut f64> + Send + Sync + 'static,
) -> MachineNumber {
    number(format!("tier.line.{name}"), kind, true, move |m| {
        m.tier.iter_mut().flat_map(|t| &mut t.line).filter_map(&place).collect()
    })
}

fn of_switches(
    name: &str,
    kind: NumberKind,
    place: impl for<'m> Fn(&'m mut InNetwork) -> &'m mut f64 + Send + Sync + 'static,
) -> MachineNumber {
    number(format!("tier.reduce.{name}"), kind, true, move |m| {
        m.tier.iter_mut().filter_map(|t| t.reduce.as_mut()).map(&place).collect()
    })
}

fn stream_rates(stream: &mut StreamRates) -> Vec<&mut f64> {
    stream.rates.iter_mut().map(|r| &mut r.1).collect()
}

/// All of them.
pub(super) static NUMBERS: LazyLock<Vec<MachineNumber>> = LazyLock::new(|| {
    use NumberKind::{Burden, Part, Rate, Seconds};
    let mut all = vec![
        of_device("kernel", Seconds, |m| vec![&mut m.device.kernel]),
        of_device("sustained", Part, |m| vec![&mut m.device.sustained]),
        of_device("attention_sustained", Part, |m| vec![&mut m.device.attention_sustained]),
        of_device("straggle", Burden, |m| vec![&mut m.device.straggle]),
        of_device("matrix.peak", Rate, |m| m.device.matrix.values_mut().map(|x| &mut x.peak).collect()),
        of_device("matrix.best", Rate, |m| m.device.matrix.values_mut().map(|x| &mut x.best).collect()),
        of_device("product.issue", Part, |m| vec![&mut m.device.product.issue]),
        of_device("product.fill", Burden, |m| vec![&mut m.device.product.fill]),
        of_device("product.split", Part, |m| vec![&mut m.device.product.split]),
        of_device("product.tiles", Part, |m| m.device.product.tiles.iter_mut().map(|t| &mut t.2).collect()),
        of_device("stream.rates", Rate, |m| stream_rates(&mut m.device.stream)),
        of_device("stream.total", Rate, |m| m.device.stream.total.iter_mut().collect()),
        of_device("attention.forward", Rate, |m| {
            m.device.attention.values_mut().map(|a| &mut a.forward.0).collect()
        }),
        of_device("attention.backward", Rate, |m| {
            m.device.attention.values_mut().map(|a| &mut a.backward.0).collect()
        }),
        of_device("attention.forward, half", Burden, |m| {
            m.device.attention.values_mut().map(|a| &mut a.forward.1).collect()
        }),
        of_device("attention.backward, half", Burden, |m| {
            m.device.attention.values_mut().map(|a| &mut a.backward.1).collect()
        }),
        of_device("attention.widths", Part, |m| {
            m.device.attention.values_mut().flat_map(|a| &mut a.widths).map(|w| &mut w.1).collect()
        }),
        of_device("attention.dropout", Burden, |m| {
            m.device.attention.values_mut().map(|a| &mut a.dropout).collect()
        }),
        number("tier.hop", Seconds, true, |m| m.tier.iter_mut().map(|t| &mut t.hop).collect()),
        number("tier.cap", Rate, true, |m| m.tier.iter_mut().filter_map(|t| t.cap.as_mut()).collect()),
        number("tier.p2p", Rate, true, |m| m.tier.iter_mut().filter_map(|t| t.p2p.as_mut()).collect()),
        number("tier.p2p_latency", Seconds, true, |m| {
            m.tier.iter_mut().map(|t| &mut t.p2p_latency).collect()
        }),
        number("tier.units", Burden, true, |m| m.tier.iter_mut().map(|t| &mut t.units).collect()),
        of_line("latency", Seconds, |l| Some(&mut l.latency)),
        of_line("per_member", Seconds, |l| Some(&mut l.per_member)),
        of_line("rate", Rate, |l| Some(&mut l.rate)),
        of_line("cap", Rate, |l| l.cap.as_mut()),
        of_switches("rate", Rate, |r| &mut r.rate),
        of_switches("link", Seconds, |r| &mut r.link),
        of_switches("frame", Burden, |r| &mut r.frame),
    ];
    all.extend(SCALAR_FAMILIES.map(|family| {
        of_device(&format!("scalar.{family}"), Seconds, move |m| {
            m.device.scalar.get_mut(family).into_iter().collect()
        })
    }));
    all.extend(["convolve", "lookup"].map(|family| {
        of_device(&format!("families.{family}"), Rate, move |m| {
            m.device.families.get_mut(family).into_iter().collect()
        })
    }));
    all
});
