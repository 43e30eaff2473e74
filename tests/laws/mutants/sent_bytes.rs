//! What is sent at the transport, counted call by call, against what Plans say of keys that go around a ring or are gathered.

use super::run::{Conduct, STEPS, run};
use super::subjects::{ATTENTION, planned_from};
use meshwright_comm::{
    Abort, AsyncCollective, Call, CollectiveKind, CommError, Group, Layout, Slot, Tag, ThreadsTransport,
    Transport,
};
use meshwright_plan::{Collective, Operand, Plan, Step};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that all devices have sent in collectives that keys take; one test alone counts.
static SENT: AtomicUsize = AtomicUsize::new(0);

struct Counting(ThreadsTransport);

/// Bytes that this member of a group sends to others.
fn sent(group: &Group, call: &Call<'_>) -> usize {
    if let (CollectiveKind::Permute, Layout::Parts(parts)) = (call.kind, &call.send) {
        let others = parts.iter().filter(|p| p.peer != group.position());
        return others.map(|p| p.range.len()).sum::<usize>() * call.slots[0].dtype().bytes();
    }
    let of = |slot: &Slot<'_>| match slot {
        // What is gathered goes to each of the others, what is scattered leaves but for what stays.
        Slot::Apart(from, to) if from.len() < to.len() => {
            from.len() * (group.size() - 1) * to.dtype().bytes()
        }
        Slot::Apart(from, to) => (from.len() - to.len()) * to.dtype().bytes(),
        Slot::InPlace(_) => 0,
    };
    call.slots.iter().map(of).sum()
}

impl Transport for Counting {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    #[expect(unsafe_code, reason = "passes the promise on")]
    unsafe fn post(
        &mut self,
        group: &Group,
        tag: &Tag,
        call: Call<'_>,
    ) -> Result<Box<dyn AsyncCollective>, CommError> {
        if &*tag.what != "plan" {
            SENT.fetch_add(sent(group, &call), Ordering::Relaxed);
        }
        // SAFETY: the caller's promise.
        unsafe { self.0.post(group, tag, call) }
    }

    fn first_step_done(&mut self) {
        self.0.first_step_done();
    }

    fn aborter(&self) -> Arc<dyn Abort> {
        self.0.aborter()
    }
}

/// What a device sends of shards of equal sizes in one step, as the Plan has it.
fn planned(plan: &Plan) -> usize {
    let of = |step: &Step| {
        let bytes: usize = step.collective_bytes(plan).iter().sum();
        let extents = |o: &Operand| plan.buffer(o.buf).extents.clone();
        match step.collective() {
            Some(Collective::Rotate { .. }) => bytes,
            // Gathers and scatters.
            Some(_) if extents(&step.reads[0]) != extents(&step.writes[0]) => bytes - bytes / 4,
            _ => 0,
        }
    };
    plan.steps.iter().map(of).sum()
}

/// Attention in a loop over layers.
const LAYERS: &str = "
dim batch = 4, seq = 5, heads = 2, d = 3, layers = 3, key = seq
layer block(x) {
    param wq[heads, d] = normal(0, 1)
    param wk[heads, d] = normal(0, 1)
    param wv[heads, d] = normal(0, 1)
    let q = x * wq
    let k = tanh(x * wk)[seq -> key]
    let v = (x * wv)[seq -> key]
    let score = tanh(sum[d](q * k) / 3)
    let seen  = where(index(key) <= index(seq), score, -1e9)
    return x + mean[heads, d](sum[key](softmax[key](seen) * v))
}
model m {
    input x[batch, seq]: float
    let y = x
    repeat layers { y = block(y) as block }
    loss l = mean[batch, seq](y * y)
}
train m { minimize l optimizer sgd(lr = 0.1) }
";

#[test]
fn a_ring_sends_what_its_plan_says_and_what_gathers_send() {
    let conduct = Conduct { transport: |t| Box::new(Counting(t)), ..Conduct::default() };
    let sent = |plan: &Plan| {
        SENT.store(0, Ordering::Relaxed);
        run(plan, &conduct).unwrap();
        SENT.load(Ordering::Relaxed)
    };
    for seq in [8, 5] {
        let text = ATTENTION.replace("seq = 5", &format!("seq = {seq}"));
        let counted = |layout| {
            let plan = planned_from("keys", &text, "a=4", layout).plan;
            (sent(&plan), planned(&plan) * 4 * STEPS as usize)
        };
        let (ring, gathers) = (counted("seq -> a; ring key"), counted("seq -> a; gather key"));
        // Gathered keys and values are kept for the backward pass, where a ring turns again; their gradients move alike.
        assert!(ring.0 > 0);
        assert_eq!(2 * ring.0, 3 * gathers.0, "of {seq} keys");
        if seq == 8 {
            // Of uneven shards Plans have the largest.
            assert_eq!((ring.0, gathers.0), (ring.1, gathers.1));
        }
        // Over two axes gathers go one after the other; gradients are all-reduced there, which does not count here.
        let over_two = |layout| sent(&planned_from("keys", &text, "a=2,b=2", layout).plan);
        let (ring, gathers) = (over_two("seq -> a, b; ring key"), over_two("seq -> a, b; gather key"));
        assert!(ring > 0);
        assert_eq!(ring, 3 * gathers, "of {seq} keys over two axes");
        // In a loop they are gathered once more.
        let text = LAYERS.replace("seq = 5", &format!("seq = {seq}"));
        let in_layers = |layout| sent(&planned_from("layers", &text, "a=4", layout).plan);
        let (ring, gathers) = (in_layers("seq -> a; ring key"), in_layers("seq -> a; gather key"));
        assert!(ring > 0);
        assert_eq!(ring, gathers, "of {seq} keys in layers");
    }
}
