//! Writes the JSON Schemas of what goes over the wire into a folder. `cargo xtask gen` runs it.
//!
//! An example rather than a package: it needs nothing that the core does not have, and a package that turns
//! the `schema` feature on would turn it on in every build of the workspace.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use schemars::Schema;
use schemars::generate::SchemaSettings;
use steadfast_core::envelope::{CallEnvelope, ResultEnvelope, TurnEnvelope};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(env::args_os().nth(1).ok_or("give the folder to write to")?);
    fs::create_dir_all(&folder)?;
    let write = |name: &str, schema: Schema| -> Result<(), Box<dyn Error>> {
        Ok(fs::write(folder.join(name), format!("{}\n", serde_json::to_string_pretty(&schema)?))?)
    };
    // A call is read and a result is written: what may be left out differs between the two.
    let read = || SchemaSettings::draft2020_12().for_deserialize().into_generator();
    let written = SchemaSettings::draft2020_12().for_serialize().into_generator();
    write("call-envelope.json", read().into_root_schema_for::<CallEnvelope>())?;
    write("turn-envelope.json", read().into_root_schema_for::<TurnEnvelope>())?;
    write("result-envelope.json", written.into_root_schema_for::<ResultEnvelope>())
}
