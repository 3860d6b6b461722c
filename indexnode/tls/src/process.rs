//! What a service asks of the system before it opens files and ports, whatever its service manager gives to it.

use rustix::{
    fs::Mode,
    process::{Resource, Rlimit, getrlimit, setrlimit, umask},
};

/// Keeps other users of the machine from the files that the process makes, and lets it have as many files and connections open
/// as it may ask for: the usual limit of 1024 is in reach of whoever may connect. Call it while there is one thread.
pub fn prepare() {
    umask(umask(Mode::RWXO) | Mode::RWXO);
    let files = getrlimit(Resource::Nofile);
    // Refused only if the hard limit was lowered meanwhile; the limit that is there is then used.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: files.maximum, maximum: files.maximum });
}
