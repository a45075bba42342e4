//! From a memory budget to an engine: everything is counted before anything is allocated.

use models::deepseek_v41::{self, tensors::VISION_PREFIXES};
use models::machine::Model;
use numerics::Kernels;
use store::layout::Layout;
use store::memory::Memory;
use store::plan::{Needs, PRESETS, Plan, Shape, Wishes, plan};
use store::weights::{Options, Source};

use super::streaming::store_layout;
use super::{Checkpoint, Engine, Family, Loaded, Resident, Streaming};
use crate::Error;

/// Of what the system says is free, `auto` leaves one part in this many to others.
const AUTO_SPARE: u64 = 16;

/// Positions of a step when nobody says, at most.
pub const MAX_CHUNK: usize = 4096;

/// What a run asks of its memory.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// Bytes in all; `None` takes what the system has free.
    pub memory: Option<u64>,
    /// Positions of the longest sequence.
    pub context: usize,
    /// Sequences at a time; each has at least one position in a step.
    pub sequences: usize,
    /// Whether fewer will do where that many do not fit, see [`Prepared::sequences`].
    pub fewer: bool,
    /// Positions of all prompts and new tokens to be made after them, for the choice of a chunk.
    pub work: (usize, usize),
    /// Positions of a step, of all sequences; fewer if that many do not fit. `None` chooses what
    /// makes `work` read the fewest bytes.
    pub chunk: Option<usize>,
    /// Record which experts are asked for, see [`Engine::trace`].
    pub record: bool,
    /// Threads that decode packed layers.
    pub threads: usize,
}

/// A checkpoint's model with its memory planned and nothing of its weights read.
pub struct Prepared<'c> {
    plan: Plan,
    shape: Shape,
    chunk: usize,
    sequences: usize,
    resident: bool,
    packed: bool,
    numerics_id: String,
    load: Box<Load<'c>>,
}

type Load<'c> = dyn FnOnce(Kernels, &mut dyn FnMut(u64)) -> Result<Box<dyn Engine>, Error> + 'c;

impl Prepared<'_> {
    /// How the memory is divided, and what a token reads.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Sizes of the model's weights.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Positions of a step, of all sequences.
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// Sequences at a time that there is memory for.
    pub fn sequences(&self) -> usize {
        self.sequences
    }

    /// Whether all weights are read at the start and stay in memory.
    pub fn resident(&self) -> bool {
        self.resident
    }

    /// Whether layers come from a packed trunk.
    pub fn packed(&self) -> bool {
        self.packed
    }

    /// Names the arithmetic.
    pub fn numerics_id(&self) -> &str {
        &self.numerics_id
    }

    /// Takes the memory. `progress` hears the bytes read of a resident model; a streamed one
    /// reads as it computes.
    ///
    /// # Errors
    /// Memory that is not given after all; a tensor that cannot be read.
    pub fn load(
        self,
        kernels: Kernels,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Box<dyn Engine>, Error> {
        (self.load)(kernels, progress)
    }
}

/// Binds the checkpoint's model and divides the memory.
///
/// # Errors
/// What [`Checkpoint::kimi_k3`] and its like refuse; drafts of a model that has none;
/// a context that is longer than the model's; [`store::Error::DoesNotFit`] with the arithmetic.
pub fn prepare<'c>(
    checkpoint: &'c Checkpoint,
    options: deepseek_v41::Options,
    demand: Demand,
) -> Result<Prepared<'c>, Error> {
    match checkpoint.family() {
        Family::KimiK3 if options.drafts => {
            Err(Error::Refused("drafts: Kimi K3 has no draft stages".into()))
        }
        Family::KimiK3 => {
            let model = checkpoint.kimi_k3()?;
            let facts = Facts { top_k: model.config().top_k, lookups: 0, ignored: k3_ignored() };
            prepare_model(checkpoint, model, facts, demand)
        }
        Family::DeepseekV41 => {
            let model = checkpoint.deepseek_v41(options)?;
            let (active, lookups) = (model.config().active, model.config().engram.lookups());
            let ignored = ds41_ignored(model.config(), options);
            let facts = Facts { top_k: active, lookups, ignored };
            prepare_model(checkpoint, model, facts, demand)
        }
    }
}

/// The checkpoint's layout in the store's terms, draft stages included, with the names it may
/// leave unread.
///
/// # Errors
/// As [`prepare`], without a plan.
pub fn layout(checkpoint: &Checkpoint) -> Result<Layout, Error> {
    match checkpoint.family() {
        Family::KimiK3 => store_layout(checkpoint.kimi_k3()?.layout(), k3_ignored()),
        Family::DeepseekV41 => {
            let drafts = checkpoint.deepseek_config()?.dspark.stages > 0;
            let options = deepseek_v41::Options { drafts, ..Default::default() };
            let model = checkpoint.deepseek_v41(options)?;
            store_layout(model.layout(), ds41_ignored(model.config(), options))
        }
    }
}

/// Compares every tensor of the checkpoint, draft stages included, with its configuration: names,
/// types and shapes, none missing and none unknown.
///
/// # Errors
/// The first that differs, by name.
pub fn check_tensors(checkpoint: &Checkpoint) -> Result<(), Error> {
    Ok(layout(checkpoint)?.check(checkpoint.index())?)
}

fn k3_ignored() -> Vec<String> {
    ["vision_tower.", "mm_projector."].map(str::to_owned).to_vec()
}

/// The vision tower, the router biases of image tokens, and draft stages nobody asked for.
fn ds41_ignored(config: &deepseek_v41::Config, options: deepseek_v41::Options) -> Vec<String> {
    let stages = if options.drafts { config.dspark.stages } else { 0 };
    let drafts = (!options.drafts).then_some("mtp.");
    let layers = (0..config.layers).map(|l| format!("layers.{l}"));
    let biases = layers.chain((0..stages).map(|s| format!("mtp.{s}")));
    let biases = biases.map(|place| format!("{place}.ffn.gate.bias_vl"));
    VISION_PREFIXES.into_iter().chain(drafts).map(str::to_owned).chain(biases).collect()
}

/// What a layout does not say.
struct Facts {
    /// Experts of a position.
    top_k: usize,
    /// Rows a position reads of every table but the embedding.
    lookups: usize,
    /// Prefixes of tensors that are not read.
    ignored: Vec<String>,
}

fn prepare_model<'c, M: Model + Send + 'static>(
    checkpoint: &'c Checkpoint,
    model: M,
    facts: Facts,
    demand: Demand,
) -> Result<Prepared<'c>, Error> {
    if demand.context > model.max_context() {
        let (asked, most) = (demand.context, model.max_context());
        return Err(Error::Refused(format!(
            "{asked} positions were asked for, and this model has {most} positions at most"
        )));
    }
    let index = checkpoint.index();
    let layout = store_layout(model.layout(), facts.ignored)?;
    let source = Source::open(&**checkpoint.disk(), index, layout, checkpoint.dir())?;
    let mut shape = source.shape(facts.top_k as u64)?;
    let tables = model.layout().tables.iter().enumerate();
    let row = |(i, t): (usize, &models::machine::TableSpec)| {
        let times = if i == 0 { 1 } else { facts.lookups };
        times * t.tensors.iter().map(models::machine::TensorSpec::row_bytes).sum::<usize>()
    };
    shape.rows = tables.map(row).sum::<usize>() as u64;
    let free = Memory::read().free();
    let memory = demand.memory.unwrap_or(free - free / AUTO_SPARE);
    let (plan, chunk, sequences) = divide(&model, memory, &shape, demand)?;
    // In memory all at once a model has its tables too, and no need of slots.
    let needs_bytes = plan.needs.state + plan.needs.kv + plan.needs.buffers;
    let whole = model_bytes(model.layout()) + needs_bytes + plan.process + plan.index;
    let resident = demand.memory.is_none() && !demand.record && whole <= memory;
    let packed = source.trunk().is_some();
    let streamed = plan.clone();
    let options = Options {
        threads: demand.threads,
        verify: packed,
        record: demand.record,
        ..Options::default()
    };
    let numerics_id = model.numerics_id();
    let load = move |kernels: Kernels, progress: &mut dyn FnMut(u64)| {
        let digest = checkpoint.digest().to_string();
        let host: Box<dyn super::Host> = if resident {
            drop(source);
            Box::new(Resident::read(checkpoint.index(), model.layout(), progress)?)
        } else {
            Box::new(Streaming::new(source, &streamed, options)?)
        };
        Ok(Box::new(Loaded::new(model, host, kernels, digest)) as Box<dyn Engine>)
    };
    let load = Box::new(load);
    Ok(Prepared { plan, shape, chunk, sequences, resident, packed, numerics_id, load })
}

/// The plan, the positions of a step and the sequences: as many as asked for, or fewer if that
/// will do.
fn divide<M: Model>(
    model: &M,
    memory: u64,
    shape: &Shape,
    mut demand: Demand,
) -> Result<(Plan, usize, usize), Error> {
    loop {
        match divide_for(model, memory, shape, demand) {
            Err(store::Error::DoesNotFit(_)) if demand.fewer && demand.sequences > 1 => {
                demand.sequences -= 1;
            }
            other => return Ok(other.map(|(plan, chunk)| (plan, chunk, demand.sequences))?),
        }
    }
}

/// The plan and the positions of a step: as many as asked for or fewer until the rest fits, and
/// if nobody asks, what makes the work read the fewest bytes. (A larger chunk reads the layers
/// fewer times, and takes memory from the pinned ones.)
fn divide_for<M: Model>(
    model: &M,
    memory: u64,
    shape: &Shape,
    demand: Demand,
) -> Result<(Plan, usize), store::Error> {
    let empty = model.state_bytes(0) * demand.sequences;
    let full = model.state_bytes(demand.context) * demand.sequences;
    let needs = |chunk: usize| Needs {
        state: empty as u64,
        kv: full.saturating_sub(empty) as u64,
        buffers: (model.step_bytes(chunk, demand.context, demand.sequences)
            + demand.sequences * model.vocab() * size_of::<f32>()) as u64,
    };
    let least = demand.sequences.max(1);
    let prompts = demand.work.0.clamp(least, least.max(MAX_CHUNK));
    let mut chunk = demand.chunk.unwrap_or(prompts).clamp(least, least.max(demand.work.0));
    let mut best: Option<(u64, Plan, usize)> = None;
    loop {
        match plan(memory, shape, needs(chunk), Wishes::default()) {
            Ok(plan) => {
                let bytes = work_bytes(&plan, shape, demand, chunk);
                if best.as_ref().is_none_or(|(least, ..)| bytes < *least) {
                    best = Some((bytes, plan, chunk));
                }
                if demand.chunk.is_some() || chunk == least {
                    break;
                }
            }
            Err(store::Error::DoesNotFit(_)) if chunk > least => (),
            Err(e) => return Err(e),
        }
        chunk = chunk.div_ceil(2).max(least);
    }
    let (_, plan, chunk) = best.expect("the loop ends with a plan or an error");
    Ok((plan, chunk))
}

/// Bytes that the demanded work reads in steps of `chunk` positions, about: experts as if each
/// position chose others, and none as if it were in the cache.
fn work_bytes(plan: &Plan, shape: &Shape, demand: Demand, chunk: usize) -> u64 {
    let experts = |positions: usize| {
        let chosen = shape.top_k * positions as u64;
        shape.experts.iter().map(|e| e.count.min(chosen) * e.stored).sum::<u64>()
    };
    let steps = |n: usize, of: usize| n.div_ceil(of) as u64;
    let step = |positions: usize| plan.trunk_per_token + experts(positions);
    let (prompt, new) = demand.work;
    let sequences = demand.sequences.max(1);
    steps(prompt, chunk) * step(chunk) + steps(new, sequences) * step(sequences)
}

fn model_bytes(layout: &models::machine::Layout) -> u64 {
    let tables = layout.tables.iter().flat_map(|t| &t.tensors);
    let head = layout.head.tensors.iter().chain([&layout.head.matrix]);
    let fixed = tables.chain(head).map(|t| t.bytes() as u64).sum::<u64>();
    let layers = layout.layers.iter().map(|l| (l.bytes() + l.experts * l.expert_bytes()) as u64);
    fixed + layers.sum::<u64>()
}

/// A size as a person writes it: `1.2GB`, `700MiB`, `auto` (which is `None`), or the name of one
/// of [`PRESETS`].
///
/// # Errors
/// What was expected.
pub fn parse_memory(text: &str) -> Result<Option<u64>, String> {
    if text == "auto" {
        return Ok(None);
    }
    if let Some(preset) = PRESETS.iter().find(|p| p.name == text) {
        return Ok(Some(preset.memory));
    }
    let expected = || {
        let names: Vec<_> = PRESETS.iter().map(|p| p.name).collect();
        format!("expected auto, a size such as 1.2GB or 700MiB, or one of {}", names.join(", "))
    };
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale = match unit.trim().to_ascii_lowercase().as_str() {
        "kb" | "k" => 1e3,
        "mb" | "m" => 1e6,
        "gb" | "g" => 1e9,
        "tb" | "t" => 1e12,
        "kib" => 1024.0,
        "mib" => 1_048_576.0,
        "gib" => 1_073_741_824.0,
        "tib" => 1_099_511_627_776.0,
        "b" => 1.0,
        _ => return Err(expected()),
    };
    let number: f64 = number.parse().map_err(|_| expected())?;
    let bytes = number * scale;
    if bytes >= 1.0 && bytes < (1u64 << 60) as f64 {
        Ok(Some(bytes as u64))
    } else {
        Err(expected())
    }
}

#[cfg(test)]
mod tests {
    use super::parse_memory;

    /// Catches a unit that is guessed, and decimal units read as binary ones.
    #[test]
    fn sizes_are_read_or_refused() {
        for (text, bytes) in [
            ("1.2GB", 1_200_000_000),
            ("700MiB", 734_003_200),
            ("3 gib", 3 << 30),
            ("512k", 512_000),
            ("laptop", 8 << 30),
        ] {
            assert_eq!(parse_memory(text), Ok(Some(bytes)), "{text}");
        }
        assert_eq!(parse_memory("auto"), Ok(None));
        for bad in ["", "12", "GB", "1.2.3GB", "-1GB", "0GB", "1e9GB", "9999999TB", "nan", "infGB"]
        {
            assert!(parse_memory(bad).unwrap_err().contains("1.2GB"), "{bad}");
        }
    }
}
