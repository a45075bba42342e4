//! The seven numbers a model is described by, checked once.

use crate::Error;
use crate::bytes::read_u32;

/// A valid model configuration: only checked values can be held.
///
/// Derived sizes: `head_size = dim / heads`, `kv_dim = head_size * kv_heads`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    dim: u32,
    hidden: u32,
    layers: u32,
    heads: u32,
    kv_heads: u32,
    vocab: u32,
    seq: u32,
    own_classifier: bool,
    head_size: u32,
}

impl Config {
    /// Bytes of a stored configuration.
    pub const BYTES: usize = 28;
    /// Largest model dimension.
    pub const MAX_DIM: u32 = 16_384;
    /// Largest feed-forward dimension.
    pub const MAX_HIDDEN: u32 = 49_152;
    /// Most layers.
    pub const MAX_LAYERS: u32 = 256;
    /// Most query heads, and most key and value heads.
    pub const MAX_HEADS: u32 = 1024;
    /// Largest vocabulary.
    pub const MAX_VOCAB: u32 = 1 << 20;
    /// Longest context.
    pub const MAX_SEQ: u32 = 65_536;

    /// Checks the seven words of a llama2.c header: dim, hidden, layers, heads, key/value heads,
    /// vocabulary (two's complement: negative when the classifier has its own matrix), context.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for a value out of range, `heads` not dividing `dim`, `kv_heads`
    /// not dividing `heads`, or an odd head size.
    pub const fn new(words: [u32; 7]) -> Result<Config, Error> {
        let [dim, hidden, layers, heads, kv_heads, vocab, seq] = words;
        let own_classifier = vocab >> 31 == 1;
        let vocab = if own_classifier { vocab.wrapping_neg() } else { vocab };
        let in_range = 2 <= dim
            && dim <= Self::MAX_DIM
            && 1 <= hidden
            && hidden <= Self::MAX_HIDDEN
            && 1 <= layers
            && layers <= Self::MAX_LAYERS
            && 1 <= heads
            && heads <= Self::MAX_HEADS
            && 1 <= kv_heads
            && kv_heads <= Self::MAX_HEADS
            && 3 <= vocab
            && vocab <= Self::MAX_VOCAB
            && 1 <= seq
            && seq <= Self::MAX_SEQ;
        if !in_range || dim % heads != 0 || heads % kv_heads != 0 || (dim / heads) % 2 != 0 {
            return Err(Error::InvalidConfig);
        }
        Ok(Config {
            dim,
            hidden,
            layers,
            heads,
            kv_heads,
            vocab,
            seq,
            own_classifier,
            head_size: dim / heads,
        })
    }

    /// [`Config::new`] on 28 little-endian bytes.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`], also for fewer bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Config, Error> {
        if bytes.len() < Self::BYTES {
            return Err(Error::InvalidConfig);
        }
        Config::new(core::array::from_fn(|i| read_u32(bytes, 4 * i)))
    }

    /// The seven words as stored.
    pub const fn words(&self) -> [u32; 7] {
        let vocab = if self.own_classifier { self.vocab.wrapping_neg() } else { self.vocab };
        [self.dim, self.hidden, self.layers, self.heads, self.kv_heads, vocab, self.seq]
    }

    /// The 28 bytes as stored.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        for (i, word) in self.words().into_iter().enumerate() {
            crate::bytes::write_u32(&mut bytes, 4 * i, word);
        }
        bytes
    }

    /// Model dimension.
    #[inline]
    pub const fn dim(&self) -> usize {
        self.dim as usize
    }
    /// Feed-forward dimension.
    #[inline]
    pub const fn hidden(&self) -> usize {
        self.hidden as usize
    }
    /// Transformer layers.
    #[inline]
    pub const fn layers(&self) -> usize {
        self.layers as usize
    }
    /// Query heads.
    #[inline]
    pub const fn heads(&self) -> usize {
        self.heads as usize
    }
    /// Key and value heads.
    #[inline]
    pub const fn kv_heads(&self) -> usize {
        self.kv_heads as usize
    }
    /// Vocabulary entries.
    #[inline]
    pub const fn vocab(&self) -> usize {
        self.vocab as usize
    }
    /// Context length in positions.
    #[inline]
    pub const fn seq(&self) -> usize {
        self.seq as usize
    }
    /// Whether the classifier has a matrix of its own instead of sharing the embedding's.
    #[inline]
    pub const fn own_classifier(&self) -> bool {
        self.own_classifier
    }
    /// Elements of a head; even.
    #[inline]
    pub const fn head_size(&self) -> usize {
        self.head_size as usize
    }
    /// Elements of a position's keys, and of its values.
    #[inline]
    pub const fn kv_dim(&self) -> usize {
        (self.head_size * self.kv_heads) as usize
    }
}
