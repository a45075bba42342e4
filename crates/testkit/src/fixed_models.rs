//! Models of the integer core for tests and benches: committed, shared, or generated from a seed
//! (vectors/fixed/README.md), always as the checkpoint and tokenizer they are converted from.

use std::path::Path;

/// A llama2.c checkpoint and its tokenizer file.
pub struct Model {
    /// Checkpoint bytes.
    pub checkpoint: Vec<u8>,
    /// Tokenizer bytes.
    pub tokenizer: Vec<u8>,
}

impl Model {
    /// The artifact converted from it.
    ///
    /// # Panics
    /// If conversion refuses it.
    pub fn artifact(&self) -> Vec<u8> {
        fixed::convert::convert(&self.checkpoint, &self.tokenizer).expect("a convertible model")
    }

    fn read(checkpoint: &Path, tokenizer: &Path) -> Model {
        let read = |p: &Path| std::fs::read(p).unwrap_or_else(|e| panic!("{}: {e}", p.display()));
        Model { checkpoint: read(checkpoint), tokenizer: read(tokenizer) }
    }
}

/// The model a golden file names (`tiny`, `facit-tales`, `stories260K`, `rand15M`, ...); `None`
/// when its files are not beside the repository.
pub fn model(name: &str) -> Option<Model> {
    match name {
        "facit-tales" => Some(facit_tales()),
        "sections3" => Some(sections3()),
        "rand15M" => rand15m(),
        "stories260K" => {
            let models = crate::shared()?.join("models");
            Some(Model::read(&models.join("stories260K.bin"), &models.join("tok512.bin")))
        }
        name => {
            let models = crate::root().join("vectors/fixed/models");
            let file = |end: &str| models.join(format!("{name}.{end}"));
            Some(Model::read(&file("bin"), &file("tok")))
        }
    }
}

/// The built-in story model.
pub fn facit_tales() -> Model {
    let folder = crate::root().join("assets/facit-tales");
    Model::read(&folder.join("model.bin"), &folder.join("tokenizer.bin"))
}

/// A random model of the shape of stories15M; needs llama2.c's 32,000-token tokenizer beside the
/// repository.
pub fn rand15m() -> Option<Model> {
    let tokenizer = crate::shared()?.join("models/tokenizer32k.bin");
    let tokenizer = std::fs::read(tokenizer).ok()?;
    let shape = Generated {
        seed: 15,
        config: [288, 768, 6, 6, 6, 32000, 256],
        embedding_gain: 1.0,
        gain: 1.0,
    };
    Some(Model { checkpoint: shape.checkpoint(), tokenizer })
}

/// A random model whose embedding, classifier and layer lie in three sections.
pub fn sections3() -> Model {
    let vocab = 40_500;
    let shape = Generated {
        seed: 6,
        config: [256, 64, 1, 4, 2, -vocab, 32],
        embedding_gain: 8.0,
        gain: 1.0,
    };
    let mut tokens: Vec<(f32, String)> =
        ["<unk>", "\n<s>\n", "\n</s>\n"].iter().map(|t| (0.0, t.to_string())).collect();
    tokens.extend((0..256).map(|b| (0.0, format!("<0x{b:02X}>"))));
    tokens.push((-1.0, " ".into()));
    tokens.extend(('a'..='z').map(|c| (-2.0, c.into())));
    tokens.extend((tokens.len()..vocab as usize).map(|id| (-9.0, format!("t{id:05}"))));
    Model { checkpoint: shape.checkpoint(), tokenizer: tokenizer_file(&tokens) }
}

/// A llama2.c tokenizer file of (score, text) pairs.
pub fn tokenizer_file(tokens: &[(f32, String)]) -> Vec<u8> {
    let longest = tokens.iter().map(|(_, t)| t.len()).max().unwrap_or(0);
    let mut file = (longest as i32).to_le_bytes().to_vec();
    for (score, text) in tokens {
        file.extend(score.to_le_bytes());
        file.extend((text.len() as i32).to_le_bytes());
        file.extend(text.as_bytes());
    }
    file
}

/// A checkpoint made of counted random numbers.
pub struct Generated {
    /// Seed of the generator.
    pub seed: u64,
    /// The seven header words (vocabulary negative for an own classifier).
    pub config: [i32; 7],
    /// Scale of the embedding.
    pub embedding_gain: f32,
    /// Scale of all other matrices.
    pub gain: f32,
}

impl Generated {
    /// The checkpoint's bytes.
    pub fn checkpoint(&self) -> Vec<u8> {
        let [dim, hidden, layers, heads, kv_heads, vocab, seq] = self.config.map(i64::from);
        let (kv, head) = (dim / heads * kv_heads, dim / heads);
        let classifier = if vocab < 0 { -vocab } else { 0 };
        let matrix = |rows: i64, columns: i64, gain: f32| {
            // Half the power of two below the columns keeps sums of products near one.
            let halvings = columns.ilog2() / 2;
            (rows * columns, Some(gain / (1u32 << halvings) as f32))
        };
        let gain = self.gain;
        let arrays = [
            matrix(vocab.abs(), dim, self.embedding_gain),
            (layers * dim, None),
            matrix(layers * dim, dim, gain),
            matrix(layers * kv, dim, gain),
            matrix(layers * kv, dim, gain),
            matrix(layers * dim, dim, gain),
            (layers * dim, None),
            matrix(layers * hidden, dim, gain),
            matrix(layers * dim, hidden, gain),
            matrix(layers * hidden, dim, gain),
            (dim, None),
            (seq * head, Some(0.0)),
            matrix(classifier, dim, gain),
        ];
        let mut bytes: Vec<u8> = self.config.iter().flat_map(|v| v.to_le_bytes()).collect();
        let mut i = 0;
        for (len, scale) in arrays {
            for _ in 0..len {
                let u = unit(self.seed, i);
                // Norm vectors are near one; the skipped arrays are zero (not minus zero).
                let value = match scale {
                    None => 1.0 + u * 0.25,
                    Some(0.0) => 0.0,
                    Some(scale) => u * scale,
                };
                bytes.extend(value.to_le_bytes());
                i += 1;
            }
        }
        bytes
    }
}

/// A number in -1..1 that depends on the seed and the place alone.
fn unit(seed: u64, i: u64) -> f32 {
    let mut z = seed.wrapping_add((i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^= z >> 31;
    ((z >> 40) as i32 - (1 << 23)) as f32 / (1 << 23) as f32
}
