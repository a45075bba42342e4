//! Choosing by a total order: value descending, then lower index. A NaN is an error, never a pick.

use crate::Error;
use std::cmp::Ordering;

fn refuse_nan(values: &[f32]) -> Result<(), Error> {
    match values.iter().position(|v| v.is_nan()) {
        Some(index) => Err(Error::Nan { index }),
        None => Ok(()),
    }
}

/// The indices of the `k` largest values (all of them if there are fewer), largest first; of equal
/// values the lower index first (`-0.0` equals `0.0`).
pub fn top_k(values: &[f32], k: usize) -> Result<Vec<u32>, Error> {
    refuse_nan(values)?;
    let order = |&a: &u32, &b: &u32| {
        let (x, y) = (values[a as usize], values[b as usize]);
        y.partial_cmp(&x).unwrap_or(Ordering::Equal).then(a.cmp(&b))
    };
    let mut ids: Vec<u32> = (0..values.len() as u32).collect();
    if k == 0 {
        return Ok(Vec::new());
    }
    if k < ids.len() {
        ids.select_nth_unstable_by(k - 1, order);
        ids.truncate(k);
    }
    ids.sort_unstable_by(order);
    Ok(ids)
}

/// The lowest index of the maximum; `Ok(None)` for an empty slice.
pub fn argmax(values: &[f32]) -> Result<Option<u32>, Error> {
    refuse_nan(values)?;
    let mut best: Option<usize> = None;
    for (i, v) in values.iter().enumerate() {
        if best.is_none_or(|b| *v > values[b]) {
            best = Some(i);
        }
    }
    Ok(best.map(|b| b as u32))
}
