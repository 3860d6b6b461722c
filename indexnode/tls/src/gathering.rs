//! Whether a write waits until the tasks that are ready have run.
//!
//! A connection carries many calls. Tasks that become ready together send one after the other: the answers to all calls
//! that waited for the same change, for example. Each answer would leave in a write of its own, which is a system call,
//! a record of TLS and a wake-up of the other end. If the first of these writes waits for one round of the scheduler,
//! all of them leave in one write. Where waiting gains nothing, as with a single caller, it only costs time: then the
//! next writes do not wait, more of them each time.

/// Most writes that do without waiting, after waiting gained nothing.
const PAUSE_MAX: u32 = 64;

#[derive(Debug, Default)]
pub struct Gathering {
    state: State,
    /// Flushes that do without, from the last one that waited to the next.
    pause: u32,
    /// Those of them that are left.
    left: u32,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Flushed,
    /// The bytes that were there when it began to wait.
    Waits(usize),
    Writes,
}

impl Gathering {
    /// Tells whether a write of this many bytes has to wait first; then it is asked again.
    pub fn waits(&mut self, bytes: usize) -> bool {
        match self.state {
            State::Flushed if self.left == 0 => {
                self.state = State::Waits(bytes);
                return true;
            }
            State::Flushed => self.left -= 1,
            State::Waits(before) => {
                self.pause = if bytes >= 2 * before { 0 } else { (2 * self.pause).clamp(1, PAUSE_MAX) };
                self.left = self.pause;
            }
            State::Writes => {}
        }
        self.state = State::Writes;
        false
    }

    pub fn flushed(&mut self) {
        self.state = State::Flushed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One flush; tells whether it waited.
    fn flush(gathering: &mut Gathering, before: usize, after: usize) -> bool {
        let has_waited = gathering.waits(before);
        if has_waited {
            assert!(!gathering.waits(after), "only once");
        }
        assert!(!gathering.waits(1), "the rest of the same flush");
        gathering.flushed();
        has_waited
    }

    #[test]
    fn it_waits_while_that_gains() {
        let mut gathering = Gathering::default();
        assert!((0..10).all(|_| flush(&mut gathering, 60, 600)));
    }

    #[test]
    fn it_waits_more_rarely_while_that_gains_nothing() {
        let mut gathering = Gathering::default();
        let waited: Vec<_> = (0..300).filter(|_| flush(&mut gathering, 60, 60)).collect();
        assert_eq!(waited, [0, 2, 5, 10, 19, 36, 69, 134, 199, 264]);
        assert!((0..100).any(|_| flush(&mut gathering, 60, 600)), "until it gains");
        assert!(flush(&mut gathering, 60, 600));
    }
}
