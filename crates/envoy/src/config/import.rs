//! Converts the limits of a configuration to a rules file, whose limits clients use by name.

use std::fmt::Write;

use super::Config;

/// The limits as YAML, each with comments that show its descriptors and what its key consists of.
///
/// The text is a rules file, which has the same limits under the same names. Options that apply
/// only to descriptors (`replaces`, `quota_mode`, `unlimited`) become comments.
pub fn to_yaml(config: &Config) -> String {
    // Writing to a `String` does not fail.
    let mut text = String::from("limits:\n");
    let mut unlimited = Vec::new();
    for rule in config.domains.rules() {
        let Some(limit) = rule
            .limit
            .as_ref()
            .and_then(|name| config.limits.iter().find(|l| l.name == *name))
        else {
            unlimited.push(format!("{} {}", comment(&rule.domain), comment(&rule.path)));
            continue;
        };
        let _ = writeln!(
            text,
            "  # domain {}: {}",
            comment(&rule.domain),
            comment(&rule.path)
        );
        match rule.values.as_slice() {
            [] => {}
            [one] => {
                let _ = writeln!(text, "  # key: the value of {}", comment(one));
            }
            several => {
                let keys: Vec<String> = several.iter().map(|key| comment(key)).collect();
                let _ = writeln!(
                    text,
                    "  # key: the values of {}; each but the last begins with its length in bytes, as in 3:abc",
                    keys.join(", ")
                );
            }
        }
        if !rule.replaces.is_empty() {
            let names: Vec<String> = rule.replaces.iter().map(|name| comment(name)).collect();
            let _ = writeln!(text, "  # replaces {}", names.join(", "));
        }
        if rule.quota {
            text.push_str(
                "  # quota_mode: denies only together with all other limits of this mode\n",
            );
        }
        limit.yaml().lines().for_each(|line| {
            let _ = writeln!(text, "  {line}");
        });
    }
    if config.limits.is_empty() {
        text.truncate(0);
        text.push_str("# These files have no limit.\nlimits: []\n");
    }
    for rule in unlimited {
        let _ = writeln!(text, "# unlimited: {rule}");
    }
    text
}

/// Text that fits on one line.
fn comment(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}
