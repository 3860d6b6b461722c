//! What a command writes: text for people, or with `--json` one JSON document for scripts. Standard output has nothing
//! but the answer; failures and progress go to standard error. With `--json` a failure is a JSON document too.

use std::{fmt::Display, io::Write as _};

use serde::Serialize;
use serde_json::json;

use crate::exit::Exit;

#[derive(Clone, Copy)]
pub struct Output {
    pub is_json: bool,
}

impl Output {
    /// A part of the answer as text, at once; nothing with `--json`.
    pub fn text(self, text: impl Display) {
        if !self.is_json {
            print(text);
        }
    }

    /// The whole answer for scripts; nothing without `--json`.
    pub fn answer(self, answer: &impl Serialize) {
        if self.is_json {
            print(format_args!("{}\n", pretty(answer)));
        }
    }

    /// A failure, on standard error.
    pub fn failure(self, exit: Exit, message: &str) {
        if self.is_json {
            let error = json!({"error": {"kind": exit, "code": exit.code(), "message": message}});
            eprintln!("{}", pretty(&error));
        } else {
            eprintln!("mantle: {message}");
        }
    }
}

/// Writes to standard output. The reader may have gone (`| head`); ignore the error.
fn print(text: impl Display) {
    let _ = write!(std::io::stdout(), "{text}");
}

fn pretty(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("answers have text keys and no failing parts")
}
