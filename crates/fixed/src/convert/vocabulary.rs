//! The llama2.c tokenizer file: a number, then score, length and text of every token.

use super::{Refused, refuse};
use crate::bytes::write_u32;
use crate::format::{TABLES, TOKEN_BYTES};

/// All tokens of a tokenizer file.
pub(super) struct Vocabulary<'a> {
    texts: Vec<&'a [u8]>,
    keys: Vec<u32>,
    text_len: usize,
}

/// Takes `N` bytes off the front.
fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*first)
}

impl<'a> Vocabulary<'a> {
    /// Reads exactly `count` tokens.
    pub fn new(file: &'a [u8], count: usize) -> Result<Self, Refused> {
        let mut rest = file;
        // The first number is the longest token's length, which nothing needs.
        if take::<4>(&mut rest).is_none() {
            return refuse("the tokenizer file is empty or cut short");
        }
        // At least eight bytes a token: a false count cannot reserve more than the file's size.
        let room = count.min(rest.len() / 8);
        let (mut texts, mut keys) = (Vec::with_capacity(room), Vec::with_capacity(room));
        for id in 0..count {
            let (Some(score), Some(len)) = (take::<4>(&mut rest), take::<4>(&mut rest)) else {
                return refuse(format!("the tokenizer ends at token {id} of {count}"));
            };
            let len = usize::try_from(i32::from_le_bytes(len)).ok().filter(|l| *l <= TOKEN_BYTES);
            let Some(len) = len else {
                return refuse(format!("token {id} does not have 0 to {TOKEN_BYTES} bytes"));
            };
            let Some((text, after)) = rest.split_at_checked(len) else {
                return refuse(format!("the tokenizer ends inside token {id} of {count}"));
            };
            rest = after;
            let Some(key) = score_key(u32::from_le_bytes(score)) else {
                return refuse(format!("the score of token {id} is not a number"));
            };
            texts.push(text);
            keys.push(key);
        }
        if !rest.is_empty() {
            return refuse(format!(
                "the tokenizer has {} bytes after its {count} tokens",
                rest.len()
            ));
        }
        let text_len = texts.iter().map(|t| t.len()).sum();
        Ok(Vocabulary { texts, keys, text_len })
    }

    /// Bytes of all texts together: at most 2^20 tokens of 128 bytes.
    pub fn text_len(&self) -> usize {
        self.text_len
    }

    /// Writes token starts, score keys, sorted ids and texts at their table offsets.
    pub fn put(&self, zero: &mut [u8], offsets: &[u64; TABLES + 1]) {
        let at = |table: usize, i: usize| offsets[table] as usize + 4 * i;
        let mut start = 0;
        for (id, (text, key)) in self.texts.iter().zip(&self.keys).enumerate() {
            write_u32(zero, at(5, id), start as u32);
            write_u32(zero, at(6, id), *key);
            zero[at(8, 0) + start..][..text.len()].copy_from_slice(text);
            start += text.len();
        }
        write_u32(zero, at(5, self.texts.len()), start as u32);
        let mut sorted: Vec<u32> = (0..self.texts.len() as u32).collect();
        sorted.sort_unstable_by_key(|id| (self.texts[*id as usize], *id));
        for (rank, id) in sorted.into_iter().enumerate() {
            write_u32(zero, at(7, rank), id);
        }
    }
}

/// A score's bits as an unsigned number of the same order, above zero; `None` for NaN.
fn score_key(bits: u32) -> Option<u32> {
    const SIGN: u32 = 1 << 31;
    const INFINITY: u32 = 0x7F80_0000;
    if bits & !SIGN > INFINITY {
        return None;
    }
    // The two zeros are equal scores.
    let bits = if bits == SIGN { 0 } else { bits };
    Some(if bits & SIGN == 0 { bits | SIGN } else { !bits })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_the_order_of_scores_and_merge_the_zeros() {
        let scores = [f32::NEG_INFINITY, -3.5, -1e-40, -0.0, 1e-40, 2.0, f32::INFINITY];
        let keys: Vec<u32> = scores.iter().map(|s| score_key(s.to_bits()).unwrap()).collect();
        assert!(keys.is_sorted_by(|a, b| a < b) && keys[0] > 0);
        assert_eq!(score_key((-0.0f32).to_bits()), score_key(0));
        assert_eq!(score_key(f32::NAN.to_bits()), None);
    }
}
