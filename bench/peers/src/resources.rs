//! Resident bytes a resource with all its statistics, in a process that does nothing else.

use sentinel_core::EntryBuilder;
use tidegate::flow::Gate;

use crate::{
    entry::{SENTINEL, start_sentinel},
    figure::Memory,
    system,
};

pub const CONTESTANTS: [(&str, &str); 2] = [
    ("tidegate", "10 slots of 100 ms, 60 of 1 s"),
    (SENTINEL, "20 slots of 500 ms"),
];

/// Enters `resources` resources, each once.
pub fn measure(who: &str, resources: u64) -> Result<Memory, String> {
    if who == SENTINEL {
        start_sentinel();
    }
    let before = system::resident().map_err(|e| e.to_string())?;
    let (gate, mut held) = (
        Gate::builder().max_resources(resources as usize).build(),
        None,
    );
    for number in 0..resources {
        let name = format!("resource-{number:07}");
        if who == SENTINEL {
            EntryBuilder::new(name)
                .build()
                .map_err(|e| e.to_string())?
                .exit();
        } else {
            drop(gate.resource(&name).enter().map_err(|e| e.to_string())?);
        }
    }
    let resident_bytes = system::resident()
        .map_err(|e| e.to_string())?
        .saturating_sub(before);
    if who != SENTINEL {
        held = Some(gate.resources().len() as u64);
    }
    let bytes_per_key = resident_bytes as f64 / resources as f64;
    Ok(Memory {
        bytes_per_key,
        keys: resources,
        max_keys: resources,
        held,
        resident_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contestant_holds_what_it_was_given() {
        for (who, _) in CONTESTANTS {
            let memory = measure(who, 1_000).unwrap();
            assert!(memory.held.is_none_or(|held| held == 1_000), "{who}");
        }
    }
}
