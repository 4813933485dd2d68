//! The last hour of each program's resources in a file, so that a restart of the server does not
//! lose it.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use tidegate_config::file;
use tidegate_core::Nanos;

use super::{
    MAX_INSTANCES, MAX_RESOURCES, Reports, is_name,
    report::{HOUR, Instance, MAX_RESOURCE_NAME, Resource},
};

/// The file's name in the directory of the pushed rules.
const NAME: &str = "hours.json";
/// The longest file that is read. One resource takes about 2 KiB.
const MAX_BYTES: u64 = 64 << 20;

/// The file, if there is a directory for it.
#[derive(Debug, Default)]
pub struct Hours(Option<PathBuf>);

/// One instance.
#[derive(Serialize, Deserialize)]
struct Kept {
    app: String,
    instance: String,
    resources: BTreeMap<String, Minutes>,
}

/// One resource.
#[derive(Serialize, Deserialize)]
struct Minutes {
    /// The newest second of the program's clock that counts in a minute.
    counted: u64,
    minutes: Vec<(u64, [u64; 2])>,
}

impl Hours {
    pub fn of(directory: Option<&Path>) -> Self {
        Self(directory.map(|directory| directory.join(NAME)))
    }

    /// Reads the file into reports that have no instances yet. A file that cannot be read costs the
    /// hours, and a line in the log.
    pub fn read(&self, reports: &Reports, now: Nanos) {
        let Some(path) = &self.0 else { return };
        let read = file::read(path, MAX_BYTES)
            .and_then(|text| serde_json::from_slice::<Vec<Kept>>(&text).map_err(io::Error::other));
        match read {
            Ok(kept) => reports.restore(kept, now),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the hours of programs are lost");
            }
        }
    }

    /// Writes the file. May block.
    pub fn write(&self, reports: &Reports, now: Nanos) {
        let Some(path) = &self.0 else { return };
        let kept = reports.kept(now);
        if kept.is_empty() && !path.exists() {
            return;
        }
        let written = serde_json::to_vec(&kept).map_err(io::Error::other);
        if let Err(error) = written.and_then(|text| file::replace(path, &text)) {
            tracing::warn!(path = %path.display(), %error, "the hours of programs were not written");
        }
    }
}

impl Reports {
    fn kept(&self, now: Nanos) -> Vec<Kept> {
        let minutes = |(name, resource): (&String, &Resource)| {
            let minutes = resource.minutes.iter().copied().collect();
            (
                name.clone(),
                Minutes {
                    counted: resource.counted,
                    minutes,
                },
            )
        };
        let kept = |((app, name), instance): (&(String, String), &Instance)| Kept {
            app: app.clone(),
            instance: name.clone(),
            resources: instance.resources.iter().map(minutes).collect(),
        };
        self.current(now).iter().map(kept).collect()
    }

    /// The bounds are those of reports: an operator may have edited the file.
    fn restore(&self, kept: Vec<Kept>, now: Nanos) {
        let minute = now.get() / 60_000_000_000;
        let mut room = MAX_RESOURCES;
        let mut instances = self.current(now);
        for Kept {
            app,
            instance,
            resources,
        } in kept.into_iter().take(MAX_INSTANCES)
        {
            if !is_name(&app) || !is_name(&instance) {
                continue;
            }
            let resources = resources
                .into_iter()
                .filter(|(name, _)| name.len() <= MAX_RESOURCE_NAME);
            let resources: BTreeMap<_, _> = resources
                .take(room)
                .map(
                    |(
                        name,
                        Minutes {
                            counted,
                            mut minutes,
                        },
                    )| {
                        minutes.retain(|(at, _)| *at <= minute && minute - at < HOUR as u64);
                        minutes.sort_unstable_by_key(|(at, _)| *at);
                        minutes.dedup_by_key(|(at, _)| *at);
                        (
                            name,
                            Resource {
                                counted,
                                minutes: minutes.into(),
                                ..Resource::default()
                            },
                        )
                    },
                )
                .collect();
            room -= resources.len();
            instances.insert(
                (app, instance),
                Instance {
                    seen: now,
                    resources,
                    ..Instance::default()
                },
            );
        }
    }
}
