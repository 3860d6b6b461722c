//! `mantle data`: the volumes of the objects' bytes, a check of every byte in one of them, the move of bytes into one, and devices for
//! them.

pub mod format;
pub mod migrate;
pub mod scrub;
pub mod status;

use anyhow::Result;

use crate::{exit::Exit, output::Output};

#[derive(clap::Args)]
pub struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Show the volumes that PostgreSQL knows, their segments, and how much is inside PostgreSQL itself
    Status(status::Options),
    /// Read everything again that objects name in the volumes of a folder, on the machine that has it
    ///
    /// It may run beside the gateway, and be interrupted: the next run goes on where this one ended.
    Scrub(scrub::Options),
    /// Let a gateway move the bytes of objects to where it would put them now, its volume or PostgreSQL, and wait for the end
    ///
    /// The gateway does it, whether this waits or not. It may be asked again after its end, or after a failure.
    Migrate(migrate::Options),
    /// Prepare a block device for a gateway's volume, on the machine that has it
    ///
    /// What the device holds is lost. It is refused if that is anything known, unless --force is given.
    Format(format::Options),
}

pub async fn run(options: Options, output: Output) -> Result<Exit> {
    match options.action {
        Action::Status(options) => status::run(options, output).await,
        Action::Scrub(options) => scrub::run(options, output).await,
        Action::Migrate(options) => migrate::run(options, output).await,
        Action::Format(options) => format::run(&options, output),
    }
}
