//! Text from bytes as they come: never a part of a character. Not a decoder of tokens.

/// Holds back the bytes of an unfinished character; what can never become one is shown as U+FFFD, as
/// `String::from_utf8_lossy` does for the whole.
#[derive(Debug, Clone, Default)]
pub struct Utf8Stream {
    held: Vec<u8>,
}

impl Utf8Stream {
    /// Takes the next bytes and gives the text that is now certain.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let mut text = String::new();
        let mut kept = self.held.len();
        let mut chunks = self.held.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            if invalid.is_empty() {
                continue;
            }
            if chunks.peek().is_none() && unfinished(invalid) {
                kept = self.held.len() - invalid.len();
            } else {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        self.held.drain(..kept);
        text
    }

    /// Ends the text: U+FFFD if a character was left unfinished. The stream is empty afterwards.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.held)).into_owned()
    }
}

/// Whether an invalid tail is the beginning of a character.
fn unfinished(tail: &[u8]) -> bool {
    std::str::from_utf8(tail).is_err_and(|e| e.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn holds_back_only_what_may_become_a_character() {
        let mut stream = Utf8Stream::default();
        assert_eq!(stream.push(b"a\xf0\x9f"), "a");
        assert_eq!(stream.push(b"\x98"), "");
        assert_eq!(stream.push(b"\x80!"), "😀!");
        assert_eq!(stream.push(b"\xff"), "\u{fffd}", "never valid: not held back");
        assert_eq!(stream.push(b"\xe4\xb8"), "");
        assert_eq!(stream.push(b"b"), "\u{fffd}b");
        assert_eq!(stream.push(b"\xc3"), "");
        assert_eq!(stream.finish(), "\u{fffd}");
        assert_eq!(stream.finish(), "");
    }

    proptest! {
        /// Where the bytes are cut must not change the text.
        #[test]
        fn equals_the_lossy_whole(bytes in prop::collection::vec(prop_oneof![
            any::<u8>(), 0x80u8..0xc0, Just(0xe4), Just(0xf0), Just(0xed), Just(b'a')], 0..60), cut in 1usize..7) {
            let mut stream = Utf8Stream::default();
            let mut text: String = bytes.chunks(cut).map(|c| stream.push(c)).collect();
            text.push_str(&stream.finish());
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }
}
