//! Puts and reads of objects that have numbers. Key and bytes follow from the number, so what is read can be compared.

use std::{
    cell::{Cell, RefCell},
    ops::Range,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use hyper::{StatusCode, body::Bytes};
use rand::{RngCore, SeedableRng, rngs::StdRng};

use crate::{
    sample::Sample,
    signed_s3::{Credentials, SignedS3},
    wire::Connection,
};

pub const OBJECT_BYTES: usize = 1 << 10;
/// Objects of a directory. A connection fills one after the other.
const PER_DIRECTORY: u64 = 1_000;
/// A gateway that answers 503 is asked again after this time, so often.
const AGAIN_PAUSE: Duration = Duration::from_millis(100);
const AGAIN_MAX: u32 = 300;
/// How often the number of objects is shown.
const PROGRESS: Duration = Duration::from_secs(10);

pub const BUCKET: &str = "bench";
/// Above the directories of the load, and of the objects that are put while a SIGKILL comes.
pub const LOAD: &str = "load";

/// What some puts did.
#[derive(Default)]
pub struct Puts {
    pub sample: Sample,
    pub elapsed: Duration,
    /// Answers 503, after which the put was repeated.
    pub repeated: u64,
}

/// Access by one gateway.
pub struct Objects {
    s3: SignedS3,
    connections: Vec<Connection>,
}

fn body_of(number: u64) -> Bytes {
    let mut bytes = vec![0; OBJECT_BYTES];
    StdRng::seed_from_u64(number).fill_bytes(&mut bytes);
    bytes.into()
}

fn path_of(directory: &str, number: u64) -> String {
    let (of, at) = (number / PER_DIRECTORY, number % PER_DIRECTORY);
    format!("{BUCKET}/{directory}/{of:06}/object-of-25-bytes-{at:06}")
}

impl Objects {
    pub fn new(of: &Credentials, region: &str, connections: usize) -> Result<Self> {
        let s3 = SignedS3::new(of, region)?;
        Ok(Self { connections: s3.connections(connections), s3 })
    }

    pub async fn make_bucket(&self) -> Result<()> {
        self.s3.create_bucket(&self.connections[0], BUCKET).await
    }

    /// Puts an object with these bytes; `false` if the gateway cannot take it now.
    async fn try_put(&self, connection: &Connection, path: &str, body: Bytes) -> Result<bool> {
        let (status, text) = self.s3.put(connection, path, body).await?;
        let is_busy = status == StatusCode::SERVICE_UNAVAILABLE;
        ensure!(status.is_success() || is_busy, "PUT {path}: {status} {}", String::from_utf8_lossy(&text));
        Ok(!is_busy)
    }

    /// Puts an object of the bucket's root; an error also while nobody answers, or the gateway cannot take it.
    pub async fn put_named(&self, name: &str) -> Result<()> {
        let is_done = self.try_put(&self.connections[0], &format!("{BUCKET}/{name}"), body_of(0)).await?;
        ensure!(is_done, "the gateway cannot take an object now");
        Ok(())
    }

    /// Puts the objects of these numbers by all connections. Each connection takes one directory after the other.
    pub async fn put_all(&self, directory: &str, numbers: Range<u64>) -> Result<Puts> {
        let (next, done, repeated) = (Cell::new(numbers.start), Cell::new(0_u64), Cell::new(0));
        let (started, shown) = (Instant::now(), Cell::new(Instant::now()));
        let loops = self.connections.iter().map(|connection| {
            let (next, done, repeated, shown) = (&next, &done, &repeated, &shown);
            async move {
                let mut sample = Sample::default();
                while next.get() < numbers.end {
                    let some = next.get()..numbers.end.min((next.get() / PER_DIRECTORY + 1) * PER_DIRECTORY);
                    next.set(some.end);
                    for number in some {
                        let began = Instant::now();
                        let again = self.put(connection, directory, number).await?;
                        sample.add(began.elapsed());
                        repeated.set(repeated.get() + again);
                        done.set(done.get() + 1);
                        if shown.get().elapsed() > PROGRESS {
                            shown.set(Instant::now());
                            let rate = done.get() as f64 / started.elapsed().as_secs_f64();
                            eprintln!("    {} of {}, {rate:.0}/s", done.get(), numbers.end - numbers.start);
                        }
                    }
                }
                Ok::<_, anyhow::Error>(sample)
            }
        });
        let samples = futures::future::try_join_all(loops).await?;
        let mut puts = Puts { elapsed: started.elapsed(), repeated: repeated.get(), ..Puts::default() };
        samples.into_iter().for_each(|sample| puts.sample.merge(sample));
        Ok(puts)
    }

    /// Puts some objects by each connection, into a directory of its own: at most as many as a directory has.
    pub async fn put_some(&self, directory: &str, each: u64) -> Result<()> {
        let loops = self.connections.iter().zip(0_u64..).map(|(connection, at)| async move {
            for number in at * PER_DIRECTORY..at * PER_DIRECTORY + each {
                self.put(connection, directory, number).await?;
            }
            Ok::<_, anyhow::Error>(())
        });
        futures::future::try_join_all(loops).await.map(drop)
    }

    /// Puts until the gateway takes the object; answers how often it did not.
    async fn put(&self, connection: &Connection, directory: &str, number: u64) -> Result<u64> {
        let path = path_of(directory, number);
        for again in 0..AGAIN_MAX {
            if self.try_put(connection, &path, body_of(number)).await? {
                return Ok(again.into());
            }
            tokio::time::sleep(AGAIN_PAUSE).await;
        }
        bail!("PUT {path}: the gateway answered 503 {AGAIN_MAX} times")
    }

    /// Puts objects from a number on until the gateway ends. Answers the numbers of those that were acknowledged, and the first
    /// number that was not used. `acknowledged` counts meanwhile.
    pub async fn put_until_it_ends(&self, directory: &str, first: u64, acknowledged: &Cell<usize>) -> (Vec<u64>, u64) {
        let (next, all) = (Cell::new(first), RefCell::new(Vec::new()));
        let loops = self.connections.iter().map(|connection| {
            let (next, all) = (&next, &all);
            async move {
                loop {
                    let number = next.replace(next.get() + 1);
                    let put = self.try_put(connection, &path_of(directory, number), body_of(number)).await;
                    match put {
                        Ok(true) => {
                            all.borrow_mut().push(number);
                            acknowledged.set(acknowledged.get() + 1);
                        }
                        Ok(false) => tokio::time::sleep(AGAIN_PAUSE).await,
                        Err(_) => return,
                    }
                }
            }
        });
        futures::future::join_all(loops).await;
        (all.into_inner(), next.get())
    }

    /// Whether an object of the load is read now, with its bytes.
    pub async fn is_readable(&self, number: u64) -> bool {
        let read = self.s3.get(&self.connections[0], &path_of(LOAD, number)).await;
        read.is_ok_and(|(status, bytes)| status.is_success() && bytes == body_of(number))
    }

    /// Reads objects of the load and compares their bytes.
    pub async fn compare(&self, numbers: &[u64]) -> Result<()> {
        let count = self.connections.len();
        let loops = self.connections.iter().enumerate().map(|(at, connection)| async move {
            for number in numbers.iter().skip(at).step_by(count) {
                let path = path_of(LOAD, *number);
                let (status, bytes) = self.s3.get(connection, &path).await?;
                ensure!(status.is_success(), "GET {path}: {status} {}", String::from_utf8_lossy(&bytes));
                ensure!(bytes == body_of(*number), "{path} has other bytes than were put");
            }
            Ok(())
        });
        futures::future::try_join_all(loops).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_keys_follow_from_the_number() {
        assert_eq!(body_of(7), body_of(7));
        assert_ne!(body_of(7), body_of(8));
        assert_eq!(path_of(LOAD, 12_345), "bench/load/000012/object-of-25-bytes-000345");
    }
}
