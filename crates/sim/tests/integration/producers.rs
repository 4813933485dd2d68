//! Short logs of real servers, as `scripts/producers.py --write` has put them into `logs`: each is
//! read with the requests, keys, denials and times of an oracle that knows only what the client
//! sent, or it is refused with the setting that helps.

use std::{fs, num::NonZeroUsize, path::PathBuf};

use tidegate_sim::{
    AlgorithmSpec, Progress, Trial, Workload,
    input::{Condition, Filter, Loaded, Options, Source, read},
    replay,
};

/// What the script expects of a log.
#[derive(Default)]
struct Expected {
    options: Options,
    refused: Option<String>,
    requests: u64,
    denied: u64,
    /// When the first request was sent, in seconds.
    begin: f64,
    /// When the last of the quick requests was answered, if the log says when requests began. A slow
    /// one, which was sent first, ended later.
    last: Option<f64>,
    keys: Vec<String>,
    paths: Vec<String>,
}

fn expected(text: &str) -> Expected {
    let mut expected = Expected::default();
    for line in text.lines() {
        let (what, rest) = line.split_once(' ').unwrap_or((line, ""));
        match what {
            "options" => {
                let words: Vec<_> = rest.split_ascii_whitespace().collect();
                for option in words.chunks(2) {
                    match option {
                        ["--stamped", stamp] => {
                            expected.options.stamped = Some(stamp.parse().unwrap());
                        }
                        ["--zone", zone] => expected.options.zone = zone.parse().unwrap(),
                        ["--exclude", condition] => {
                            let condition: Condition = condition.parse().unwrap();
                            expected.options.filter = Filter {
                                exclude: vec![condition],
                                ..Filter::default()
                            };
                        }
                        other => panic!("{other:?} is not known"),
                    }
                }
            }
            "refused" => expected.refused = Some(rest.to_owned()),
            "requests" => expected.requests = rest.parse().unwrap(),
            "denied" => expected.denied = rest.parse().unwrap(),
            "begin" => expected.begin = rest.parse().unwrap(),
            "last" => expected.last = Some(rest.parse().unwrap()),
            "key" => expected.keys.push(rest.to_owned()),
            "path" => expected.paths.push(rest.to_owned()),
            other => panic!("{other} is not known"),
        }
    }
    expected
}

fn labels(loaded: &Loaded) -> Vec<String> {
    let mut labels: Vec<_> = (0..loaded.trace.keys())
        .map(|key| loaded.trace.label(key))
        .collect();
    labels.sort_unstable();
    labels
}

#[test]
fn each_real_log_is_read_as_the_client_s_requests_or_refused_with_advice() {
    let logs = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/logs");
    let mut names: Vec<_> = fs::read_dir(&logs)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "log"))
        .collect();
    names.sort_unstable();
    assert!(names.len() > 35, "{}", names.len());
    let algorithms = AlgorithmSpec::parse_list("sliding-log").unwrap();
    let trial = Trial::new("3/1h".parse().unwrap(), &algorithms).unwrap();
    for path in names {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let expected = expected(&fs::read_to_string(path.with_extension("expected")).unwrap());
        let sources = [Source::File(path)];
        let loaded = read(&sources, &expected.options, &Progress::default());
        if let Some(advice) = &expected.refused {
            let error = loaded
                .map(|loaded| labels(&loaded))
                .unwrap_err()
                .to_string();
            assert!(error.contains(advice), "{name}: {error}");
            continue;
        }
        let loaded = loaded.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(labels(&loaded), expected.keys, "{name}");
        assert_eq!(loaded.trace.requests(), expected.requests, "{name}");
        let findings = replay(
            &loaded.trace,
            std::slice::from_ref(&trial),
            NonZeroUsize::MIN,
            &Progress::default(),
        );
        assert_eq!(findings[0].rows[0].denied, expected.denied, "{name}");
        let first = loaded.trace.span().0 as f64 / 1e9;
        let late = first - expected.begin;
        assert!(
            (-2.0..4.0).contains(&late),
            "{name}: {late} s from the first request"
        );
        let end = loaded.trace.span().1 as f64 / 1e9;
        assert!(
            expected.last.is_none_or(|last| end <= last + 0.1),
            "{name}: {end}"
        );
        let by_path = Options {
            by: Some("path".parse().unwrap()),
            ..expected.options
        };
        let paths = read(&sources, &by_path, &Progress::default()).unwrap();
        // Some servers write `%20` as a blank, or a bracket as `%5B`.
        let paths = labels(&paths);
        assert_eq!(paths.len(), expected.paths.len(), "{name}: {paths:?}");
        let plain = |path: &&String| !path.contains(['%', '[']);
        let missing = expected
            .paths
            .iter()
            .filter(plain)
            .find(|path| !paths.contains(path));
        assert_eq!(missing, None, "{name}: {paths:?}");
    }
}
