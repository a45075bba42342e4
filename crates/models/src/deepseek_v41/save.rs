//! A state as one safetensors file in memory, and back to the same bits.

use super::cache::{Packing, Rows};
use super::model::DeepSeekV41;
use super::state::State;
use crate::machine::{DType, Model, Piece, Snapshot, SnapshotError};

/// Kind and version of a saved state.
const FORMAT: &str = "facit deepseek_v41 state 1";

fn damaged(text: impl Into<String>) -> SnapshotError {
    SnapshotError::Damaged(text.into())
}

fn save_rows<'s>(
    out: &mut Snapshot<'s>,
    name: &str,
    rows: &'s Rows,
    packing: Packing,
    width: usize,
) {
    let (codes, scales) = packing.row_bytes(width);
    let parts = [("codes", codes, rows.codes()), ("scales", scales, rows.scales())];
    for (part, row, bytes) in parts {
        out.pieces.push(Piece {
            name: format!("{name}.{part}"),
            dtype: DType::U8,
            shape: vec![rows.len(), row],
            bytes: bytes.into(),
        });
    }
}

fn load_rows(
    s: &Snapshot<'_>,
    name: &str,
    count: usize,
    packing: Packing,
    width: usize,
) -> Result<Rows, SnapshotError> {
    let (codes, scales) = packing.row_bytes(width);
    let codes = s.piece(&format!("{name}.codes"), DType::U8, &[count, codes])?;
    let scales = s.piece(&format!("{name}.scales"), DType::U8, &[count, scales])?;
    let rows = Rows::from_bytes(packing, width, &codes.bytes, &scales.bytes);
    rows.ok_or_else(|| damaged(format!("{name}: codes and scales are of different rows")))
}

pub(super) fn save<'s>(model: &DeepSeekV41, state: &'s State, digest: &str) -> Snapshot<'s> {
    let c = &model.config;
    let mut out = Snapshot::default();
    let recent: Vec<String> = state.recent.iter().map(u32::to_string).collect();
    for (key, value) in [
        ("format", FORMAT.to_owned()),
        ("digest", digest.to_owned()),
        ("numerics", model.numerics_id()),
        ("position", state.position.to_string()),
        ("recent", recent.join(" ")),
        ("drafts", state.draft.is_some().to_string()),
    ] {
        out.meta.insert(key.to_owned(), value);
    }
    for (l, ring) in state.windows.iter().enumerate() {
        save_rows(&mut out, &format!("layers.{l}.window"), ring, Packing::Fp8, c.head_dim);
    }
    for (s, source) in state.sources.iter().enumerate() {
        let name = format!("layers.{}", c.kv_sources[s]);
        save_rows(
            &mut out,
            &format!("{name}.rows"),
            &source.rows.rows,
            Packing::Fp4E4m3,
            c.head_dim,
        );
        save_rows(
            &mut out,
            &format!("{name}.keys"),
            &source.rows.keys,
            Packing::Fp4E8m0,
            c.index_dim,
        );
        for (part, values) in [("kv", &source.partial.kv), ("score", &source.partial.score)] {
            let shape = [values.len() / c.head_dim, c.head_dim];
            out.pieces.push(Piece::f32s(format!("{name}.partial.{part}"), &shape, values));
        }
    }
    if let Some(draft) = &state.draft {
        for (s, ring) in draft.rings.iter().enumerate() {
            save_rows(&mut out, &format!("mtp.{s}.window"), ring, Packing::Fp8, c.head_dim);
        }
        let shape = [draft.hidden.len() / c.main_hidden(), c.main_hidden()];
        out.pieces.push(Piece::f32s("mtp.hidden".to_owned(), &shape, &draft.hidden));
    }
    out
}

pub(super) fn restore(
    model: &DeepSeekV41,
    bytes: &[u8],
    digest: &str,
    context: usize,
) -> Result<State, SnapshotError> {
    let c = &model.config;
    let s = Snapshot::read(bytes)?;
    s.expect_meta("format", "kind of state", FORMAT)?;
    s.expect_meta("digest", "model", digest)?;
    s.expect_meta("numerics", "numerics id", &model.numerics_id())?;
    s.expect_meta("drafts", "use of draft stages", &model.options.drafts.to_string())?;
    let position = s.meta.get("position").and_then(|p| p.parse::<usize>().ok());
    let position =
        position.filter(|&p| p <= c.max_positions).ok_or_else(|| damaged("no position"))?;
    if position > context {
        return Err(SnapshotError::Context { position, context });
    }
    let mut state = model.new_state(context)?;
    let recent = s.meta.get("recent").map_or("", String::as_str).split_whitespace();
    state.recent =
        recent.map(str::parse).collect::<Result<_, _>>().map_err(|_| damaged("recent ids"))?;
    let known = state.recent.iter().all(|&id| (id as usize) < c.engram.compressed_vocab);
    if !known || state.recent.len() != position.min(c.engram.max_ngram - 1) {
        return Err(damaged("recent ids that do not fit the position"));
    }
    let ring = position.min(c.window);
    for (l, window) in state.windows.iter_mut().enumerate() {
        *window = load_rows(&s, &format!("layers.{l}.window"), ring, Packing::Fp8, c.head_dim)?;
    }
    for (i, source) in state.sources.iter_mut().enumerate() {
        let (name, ratio) = (format!("layers.{}", c.kv_sources[i]), c.source_ratio(i));
        let groups = position / ratio;
        source.rows.rows =
            load_rows(&s, &format!("{name}.rows"), groups, Packing::Fp4E4m3, c.head_dim)?;
        source.rows.keys =
            load_rows(&s, &format!("{name}.keys"), groups, Packing::Fp4E8m0, c.index_dim)?;
        let shape = [position % ratio, c.head_dim];
        for (part, values) in [("kv", &mut source.partial.kv), ("score", &mut source.partial.score)]
        {
            values.resize(shape[0] * shape[1], 0.0);
            s.read_f32s(&format!("{name}.partial.{part}"), &shape, values)?;
        }
    }
    if let Some(draft) = &mut state.draft {
        let hidden = s.pieces.iter().find(|p| p.name == "mtp.hidden");
        let hidden = hidden.and_then(|p| p.shape.first().copied()).filter(|&n| n <= ring);
        let hidden =
            hidden.ok_or_else(|| damaged("mtp.hidden is missing or longer than the window"))?;
        draft.hidden.resize(hidden * c.main_hidden(), 0.0);
        s.read_f32s("mtp.hidden", &[hidden, c.main_hidden()], &mut draft.hidden)?;
        // The rings hold what is no longer waiting; with a whole window waiting, anything.
        let filled = s.pieces.iter().find(|p| p.name == "mtp.0.window.codes");
        let filled = filled.and_then(|p| p.shape.first().copied()).unwrap_or(0);
        if filled > ring || filled + hidden < ring {
            return Err(damaged("draft rings that do not fit the position"));
        }
        for (i, ring) in draft.rings.iter_mut().enumerate() {
            *ring = load_rows(&s, &format!("mtp.{i}.window"), filled, Packing::Fp8, c.head_dim)?;
        }
    }
    if s.pieces.len() != state_pieces(&state) {
        return Err(damaged("tensors of another model"));
    }
    state.position = position;
    Ok(state)
}

/// Tensors of a saved state.
fn state_pieces(state: &State) -> usize {
    let draft = state.draft.as_ref().map_or(0, |d| 2 * d.rings.len() + 1);
    2 * state.windows.len() + 6 * state.sources.len() + draft
}
