//! Choices out of bytes. The fuzzer learns which byte decides what, so each choice takes exactly one.

/// The bytes of an input, taken one by one.
#[derive(Clone, Debug)]
pub(crate) struct Draw<'a> {
    rest: &'a [u8],
}

impl<'a> Draw<'a> {
    pub(crate) fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    /// The next byte; nothing at the end.
    pub(crate) fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    /// The next byte, where nothing more to come means zero.
    pub(crate) fn byte(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    /// One of these; the first if nothing more comes.
    pub(crate) fn pick<T, const N: usize>(&mut self, from: [T; N]) -> T {
        const { assert!(N > 0 && N <= 256, "a byte picks one of 1 to 256") };
        let place = usize::from(self.byte()) % N;
        let Some(picked) = from.into_iter().nth(place) else { unreachable!("the place is below N") };
        picked
    }

    /// Yes or no; no if nothing more comes.
    pub(crate) fn flag(&mut self) -> bool {
        self.byte() % 2 == 1
    }

    /// A number of two bytes.
    pub(crate) fn short(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    /// Everything that is left.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }
}
