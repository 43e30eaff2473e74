//! Several asynchronous collectives, mixed buckets, handles that are dropped or leaked, bytes that must agree.

use super::collectives::equal;
use super::{Checked, Device, Wrong, tag};
use meshwright_comm::{Buf, BufMut, Call, Collectives, CommError, Group, Slot, Tag};
use meshwright_plan::Monoid;

pub(super) fn all(device: &mut Device<'_>) {
    let world = match Group::world(device.transport.size(), device.transport.rank()) {
        Ok(world) => world,
        Err(e) => {
            device.outcomes.push(("asynchronous".into(), Err(e.to_string())));
            return;
        }
    };
    device.case("several asynchronous ones end in any order".into(), |d| any_order(d, &world));
    device.case("buckets of several dtypes".into(), |d| buckets(d, &world));
    device.case("many groups are first used asynchronously".into(), new_groups);
    device.case("handles are dropped after all have come".into(), |d| dropped(d, &world));
    device.case("a leaked handle keeps its memory".into(), |d| leaked(d, &world));
    device.case("bad calls disturb nobody".into(), |d| bad_calls(d, &world));
    device.case("agree".into(), |d| agree(d, &world));
}

#[expect(clippy::ptr_arg, reason = "the owner is a `Vec`")]
fn sum(b: &mut Vec<f32>) -> Call<'_> {
    Call::all_reduce(Monoid::Sum, vec![Slot::InPlace(BufMut::new(b))])
}

fn all_are(got: &[f32], want: f32, tag: &Tag) -> Checked {
    equal(got, &vec![want; got.len()], tag)
}

/// This rank with its neighbor; the last one stays alone where their number is odd.
fn pair(device: &Device<'_>) -> Result<Group, Wrong> {
    let (rank, size) = (device.transport.rank(), device.transport.size());
    let low = rank - rank % 2;
    let ranks: Vec<usize> = (low..(low + 2).min(size)).collect();
    Group::new(ranks, rank).map_err(|e| Wrong::Result(e.to_string()))
}

fn total(group: &Group) -> f32 {
    group.ranks().iter().map(|rank| (rank + 1) as f32).sum()
}

fn any_order(device: &mut Device<'_>, world: &Group) -> Checked {
    let (rank, n, pair) = (world.rank(), world.size(), pair(device)?);
    for round in 0..20 {
        let mut started = Vec::new();
        for i in 0..6 {
            let (tag, _) = device.next();
            let group = if i % 2 == 0 { world } else { &pair };
            let data = vec![(rank + 1) as f32 * (i + 1) as f32; 3 + 30_000 * (i % 3)];
            started.push((i, tag.clone(), device.transport.start(group, &tag, data, sum)?));
        }
        let (tag, _) = device.next();
        let pieces = (vec![rank as u8], vec![99u8; n]);
        let gather = device.transport.start(world, &tag, pieces, |(piece, whole)| {
            Call::all_gather(Buf::new(piece), vec![1; n], BufMut::new(whole))
        })?;
        // Each device finishes in another order.
        let by = rank + round;
        started.rotate_left(by % 6);
        if by.is_multiple_of(2) {
            started.reverse();
        }
        for (i, tag, handle) in started {
            let group = if i % 2 == 0 { world } else { &pair };
            all_are(&handle.wait()?, total(group) * (i + 1) as f32, &tag)?;
        }
        let ranks: Vec<u8> = (0..n).map(|r| r as u8).collect();
        equal(&gather.wait()?.1, &ranks, &tag)?;
    }
    Ok(())
}

fn buckets(device: &mut Device<'_>, world: &Group) -> Checked {
    let (tag, _) = device.next();
    let mine = (world.rank() + 1) as i32;
    let lens: Vec<usize> = (0..12).map(|i| (i * i * 37) % 2500).collect();
    let mut singles: Vec<Vec<f32>> = lens.iter().map(|n| vec![mine as f32; *n]).collect();
    let mut doubles: Vec<Vec<f64>> = lens.iter().map(|n| vec![f64::from(mine) * 2.0; n + 1]).collect();
    let mut ints: Vec<Vec<i32>> = lens.iter().map(|n| vec![mine * 3; n * 9]).collect();
    let mut bucket = Vec::new();
    for ((a, b), c) in singles.iter_mut().zip(&mut doubles).zip(&mut ints) {
        bucket.extend([
            Slot::InPlace(BufMut::new(a)),
            Slot::InPlace(BufMut::new(b)),
            Slot::InPlace(BufMut::new(c)),
        ]);
    }
    device.transport.call(world, &tag, Call::all_reduce(Monoid::Sum, bucket))?;
    let total = total(world);
    for ((a, b), c) in singles.iter().zip(&doubles).zip(&ints) {
        all_are(a, total, &tag)?;
        equal(b, &vec![f64::from(total) * 2.0; b.len()], &tag)?;
        equal(c, &vec![total as i32 * 3; c.len()], &tag)?;
    }
    Ok(())
}

/// Every pair of ranks in descending order, which no other case uses, in an order that all ranks share.
fn new_groups(device: &mut Device<'_>) -> Checked {
    let (rank, n) = (device.transport.rank(), device.transport.size());
    let first = device.sequence + 1;
    let mut started = Vec::new();
    for low in 0..n {
        for high in low + 1..n {
            device.sequence += 1;
            let tag = tag(device.sequence);
            let Ok(group) = Group::new([high, low], rank) else { continue };
            let data = vec![(rank + 1) as f32; 100];
            let sum = total(&group);
            started.push((sum, tag.clone(), device.transport.start(&group, &tag, data, sum_of)?));
        }
    }
    if !(rank + first as usize).is_multiple_of(2) {
        started.reverse();
    }
    for (want, tag, handle) in started {
        all_are(&handle.wait()?, want, &tag)?;
    }
    Ok(())
}

fn sum_of(b: &mut Vec<f32>) -> Call<'_> {
    sum(b)
}

fn dropped(device: &mut Device<'_>, world: &Group) -> Checked {
    for i in 0..20 {
        let (tag, _) = device.next();
        let data = vec![(world.rank() + 1) as f32; 50_000];
        let started = device.transport.start(world, &tag, data, sum)?;
        let (after, _) = device.next();
        device.transport.barrier(world, &after)?;
        if (i + world.rank()).is_multiple_of(2) {
            drop(started);
        } else {
            all_are(&started.wait()?, total(world), &tag)?;
        }
    }
    Ok(())
}

fn leaked(device: &mut Device<'_>, world: &Group) -> Checked {
    let (tag, _) = device.next();
    let data = vec![(world.rank() + 1) as f32; 200_000];
    let started = device.transport.start(world, &tag, data, sum)?;
    if world.rank() + 1 == world.size() {
        std::mem::forget(started);
        // It goes on without being waited for.
        std::thread::sleep(std::time::Duration::from_millis(20));
    } else {
        all_are(&started.wait()?, total(world), &tag)?;
    }
    let (tag, _) = device.next();
    Ok(device.transport.barrier(world, &tag)?)
}

fn bad_calls(device: &mut Device<'_>, world: &Group) -> Checked {
    let (tag, _) = device.next();
    let (a, mut b) = ([1f32; 4], [0f32; 4]);
    let counts: Vec<usize> = vec![7; world.size()];
    let call = Call::all_gather(Buf::new(&a), counts, BufMut::new(&mut b));
    match device.transport.call(world, &tag, call) {
        Err(CommError::InvalidCall { .. }) => {}
        other => return Err(Wrong::Result(format!("{other:?}"))),
    }
    let (tag, _) = device.next();
    match device.transport.barrier(&Group::new([0, 1 << 20], 0).unwrap_or(world.clone()), &tag) {
        Err(CommError::InvalidCall { .. }) => {}
        other => return Err(Wrong::Result(format!("{other:?}"))),
    }
    let (tag, _) = device.next();
    Ok(device.transport.barrier(world, &tag)?)
}

fn agree(device: &mut Device<'_>, world: &Group) -> Checked {
    let odd = world.size() / 2;
    for (theirs, differ) in [("abc", false), ("abd", true), ("", true), ("abcd", true)] {
        let (tag, _) = device.next();
        let bytes = if world.rank() == odd { theirs } else { "abc" };
        let found = device.transport.agree(world, &tag, bytes.as_bytes());
        let right = match &found {
            Ok(()) => !differ || world.size() < 3,
            Err(CommError::Disagree { ranks, like, .. }) => {
                differ && (world.size() < 3 || (*ranks == [odd] && *like == 0))
            }
            Err(_) => false,
        };
        if !right {
            return Err(Wrong::Result(format!("{found:?}")));
        }
    }
    Ok(())
}
