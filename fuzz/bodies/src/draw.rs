//! Choices derived from bytes. Each choice takes exactly one byte, so that the fuzzer learns which byte decides it.

/// The bytes of an input, taken one by one.
#[derive(Clone, Debug)]
pub(crate) struct InputDraw<'a> {
    rest: &'a [u8],
}

impl<'a> InputDraw<'a> {
    pub(crate) fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    /// Returns the next byte. `None` at the end.
    pub(crate) fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    /// Returns the next byte. Zero at the end.
    pub(crate) fn byte(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    /// Returns one of these. The first one at the end.
    pub(crate) fn pick<T, const N: usize>(&mut self, from: [T; N]) -> T {
        const { assert!(N > 0 && N <= 256, "a byte picks one of 1 to 256") };
        let place = usize::from(self.byte()) % N;
        let Some(picked) = from.into_iter().nth(place) else { unreachable!("the place is below N") };
        picked
    }

    /// Returns a flag. False at the end.
    pub(crate) fn flag(&mut self) -> bool {
        self.byte() % 2 == 1
    }

    /// Returns a number of two bytes.
    pub(crate) fn short(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    /// Returns all remaining bytes.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }
}
