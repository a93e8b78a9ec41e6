//! Whether a text is one JSON object: a scan without recursion and without memory.

/// Open objects and arrays are bits of one u128.
pub(super) const MAX_DEPTH: u32 = u128::BITS;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    #[error("is not a JSON object")]
    NotAnObject,
    #[error("is not valid JSON at byte {0}")]
    Syntax(usize),
    #[error("is more than {MAX_DEPTH} levels deep")]
    TooDeep,
}

/// Checks that `text` is one JSON object with nothing but white space around it.
pub(super) fn check_object(text: &str) -> Result<(), Fault> {
    let mut scan = Scan { bytes: text.as_bytes(), at: 0, arrays: 0, depth: 0 };
    scan.white_space();
    if scan.peek() != Some(b'{') {
        return Err(Fault::NotAnObject);
    }
    scan.value()?;
    scan.white_space();
    match scan.peek() {
        None => Ok(()),
        Some(_) => Err(scan.syntax()),
    }
}

struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The innermost container is bit 0: 1 = array, 0 = object.
    arrays: u128,
    depth: u32,
}

impl Scan<'_> {
    /// One value with all that it contains.
    fn value(&mut self) -> Result<(), Fault> {
        loop {
            // At the first byte of a value.
            match self.peek() {
                Some(b'{') => {
                    self.open(0)?;
                    if !self.closes(b'}') {
                        self.member_name()?;
                        continue;
                    }
                }
                Some(b'[') => {
                    self.open(1)?;
                    if !self.closes(b']') {
                        continue;
                    }
                }
                Some(b'"') => self.string()?,
                Some(b'-' | b'0'..=b'9') => self.number()?,
                Some(b't') => self.word(b"true")?,
                Some(b'f') => self.word(b"false")?,
                Some(b'n') => self.word(b"null")?,
                _ => return Err(self.syntax()),
            }
            // After a value: end containers until one goes on.
            loop {
                if self.depth == 0 {
                    return Ok(());
                }
                self.white_space();
                let in_array = self.arrays & 1 == 1;
                match self.peek() {
                    Some(b',') => {
                        self.at += 1;
                        self.white_space();
                        if !in_array {
                            self.member_name()?;
                        }
                        break;
                    }
                    Some(b']') if in_array => self.close(),
                    Some(b'}') if !in_array => self.close(),
                    _ => return Err(self.syntax()),
                }
            }
        }
    }

    fn open(&mut self, array: u128) -> Result<(), Fault> {
        if self.depth == MAX_DEPTH {
            return Err(Fault::TooDeep);
        }
        self.depth += 1;
        self.arrays = self.arrays << 1 | array;
        self.at += 1;
        self.white_space();
        Ok(())
    }

    fn close(&mut self) {
        self.depth -= 1;
        self.arrays >>= 1;
        self.at += 1;
    }

    /// Closes a container that has just been opened if it is empty.
    fn closes(&mut self, end: u8) -> bool {
        let empty = self.peek() == Some(end);
        if empty {
            self.close();
        }
        empty
    }

    /// Name and colon of a member; stops at its value.
    fn member_name(&mut self) -> Result<(), Fault> {
        if self.peek() != Some(b'"') {
            return Err(self.syntax());
        }
        self.string()?;
        self.white_space();
        self.word(b":")?;
        self.white_space();
        Ok(())
    }

    fn string(&mut self) -> Result<(), Fault> {
        self.at += 1;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => {
                    self.at += 1;
                    self.escape()?;
                }
                Some(0..=0x1f) | None => return Err(self.syntax()),
                Some(_) => self.at += 1,
            }
        }
    }

    fn escape(&mut self) -> Result<(), Fault> {
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
            Some(b'u') => {
                self.at += 1;
                for _ in 0..4 {
                    if !self.peek().is_some_and(|byte| byte.is_ascii_hexdigit()) {
                        return Err(self.syntax());
                    }
                    self.at += 1;
                }
            }
            _ => return Err(self.syntax()),
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), Fault> {
        self.skip_if(b"-");
        match self.digits() {
            0 => return Err(self.syntax()),
            1 => {}
            count if self.bytes[self.at - count] == b'0' => return Err(self.syntax()),
            _ => {}
        }
        if self.skip_if(b".") && self.digits() == 0 {
            return Err(self.syntax());
        }
        if self.skip_if(b"eE") {
            self.skip_if(b"+-");
            if self.digits() == 0 {
                return Err(self.syntax());
            }
        }
        Ok(())
    }

    fn digits(&mut self) -> usize {
        let count = self.bytes[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += count;
        count
    }

    fn skip_if(&mut self, any: &[u8]) -> bool {
        let skip = self.peek().is_some_and(|byte| any.contains(&byte));
        self.at += usize::from(skip);
        skip
    }

    fn word(&mut self, word: &[u8]) -> Result<(), Fault> {
        if !self.bytes[self.at..].starts_with(word) {
            return Err(self.syntax());
        }
        self.at += word.len();
        Ok(())
    }

    fn white_space(&mut self) {
        while self.skip_if(b" \t\n\r") {}
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn syntax(&self) -> Fault {
        Fault::Syntax(self.at)
    }
}

#[cfg(test)]
mod tests;
