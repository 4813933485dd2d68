//! Trees of YAML, suggestions for misspelt words, and files that change.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use tidegate_config::{
    Kind, Node,
    file::{Look, Watch, read},
    likest, nearest, parse,
};

fn tree(text: &str) -> Node {
    parse(text).unwrap().unwrap()
}

#[test]
fn every_node_knows_its_line() {
    let Kind::Mapping(top) =
        tree("# comment\nlimits:\n  - name: a\n    deny: [x,\n      y]\n").kind
    else {
        panic!()
    };
    assert_eq!(top[0].0.line, 2);
    let Kind::Sequence(limits) = &top[0].1.kind else {
        panic!()
    };
    let Kind::Mapping(fields) = &limits[0].kind else {
        panic!()
    };
    assert_eq!((fields[0].0.line, fields[1].0.line), (3, 4));
    let Kind::Sequence(deny) = &fields[1].1.kind else {
        panic!()
    };
    assert_eq!((deny[0].line, deny[1].line), (4, 5));
}

#[test]
fn broken_yaml_is_refused_with_its_line() {
    let problem = parse("limits:\n  - name: [a\n  - b\n").unwrap_err();
    assert!(problem.line().is_some_and(|line| line >= 2), "{problem}");
    for text in ["a: &x 1\nb: *x\n", "a: *x\n"] {
        assert!(parse(text).is_err(), "{text}");
    }
    assert!(
        parse("a: 1\n---\nb: 2\n")
            .unwrap_err()
            .to_string()
            .contains("second")
    );
    assert!(parse(&"[".repeat(10_000)).is_err());
}

#[test]
fn the_number_of_values_is_bounded() {
    let list = |values: usize| format!("[{}]", "1,".repeat(values - 1));
    assert!(parse(&list(250_000)).is_ok());
    let problem = parse(&list(250_001)).unwrap_err();
    assert!(
        problem.to_string().contains("more than 250000 values"),
        "{problem}"
    );
}

#[test]
fn an_empty_text_is_no_document() {
    assert!(parse("").unwrap().is_none());
    assert!(parse("# nothing yet\n").unwrap().is_none());
}

#[test]
fn a_slip_of_the_finger_finds_what_was_meant() {
    let options = ["burst", "slots", "max_wait", "first_hit", "closed"];
    assert_eq!(nearest("burts", options), Some("burst"));
    assert_eq!(nearest("first-hit", options), Some("first_hit"));
    assert_eq!(nearest("maxwait", options), Some("max_wait"));
    assert_eq!(nearest("Slot", options), Some("slots"));
    assert_eq!(nearest("colour", options), None);
    assert_eq!(nearest("", options), None);
}

#[test]
fn the_likest_come_first_and_are_few() {
    let names = ["logins", "per-user", "per-ip", "everyone"];
    assert_eq!(likest("per-usr", names, 2), ["per-user", "per-ip"]);
    assert_eq!(likest("x", names, 0), [""; 0]);
    assert_eq!(likest("x", [], 3), [""; 0]);
}

/// Creates a directory for one test.
fn directory(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("tidegate-watch-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

fn watch(path: &Path) -> Watch {
    let path = path.to_owned();
    Watch::new(move || Some(vec![path.clone()]), 1 << 20)
}

/// A change is reported at the second look, and only once.
fn changes_once(watch: &mut Watch) {
    assert_eq!(
        watch.look(),
        Look::Unsettled,
        "it may still be being written"
    );
    assert_eq!(watch.look(), Look::Changed);
    assert_eq!(watch.look(), Look::Same);
}

#[test]
fn what_is_not_a_regular_file_or_too_large_is_not_read() {
    let directory = directory("read");
    assert!(
        read(&directory, 10)
            .unwrap_err()
            .to_string()
            .contains("not a regular file")
    );
    let path = directory.join("file");
    assert_eq!(read(&path, 10).unwrap_err().kind(), io::ErrorKind::NotFound);
    fs::write(&path, "0123456789").unwrap();
    assert_eq!(read(&path, 10).unwrap(), b"0123456789");
    assert_eq!(
        read(&path, 9).unwrap_err().kind(),
        io::ErrorKind::FileTooLarge
    );
}

#[test]
fn an_edit_in_place_and_a_rename_over_the_file_are_changes() {
    let directory = directory("rename");
    let path = directory.join("rules.yaml");
    fs::write(&path, "a").unwrap();
    let mut watch = watch(&path);
    assert_eq!((watch.look(), watch.look()), (Look::Same, Look::Same));
    // The same length, and perhaps within one tick of the file system's clock.
    fs::write(&path, "b").unwrap();
    changes_once(&mut watch);
    fs::write(directory.join("rules.yaml~"), "cc").unwrap();
    fs::rename(directory.join("rules.yaml~"), &path).unwrap();
    changes_once(&mut watch);
    // Writing the same text again is not a change.
    fs::write(&path, "cc").unwrap();
    assert_eq!(watch.look(), Look::Same);
}

#[cfg(unix)]
#[test]
fn a_config_map_that_swaps_its_data_directory_is_a_change() {
    use std::os::unix::fs::symlink;
    // rules.yaml -> ..data/rules.yaml, ..data -> ..first; the swap renames a new link over ..data.
    let directory = directory("configmap");
    for version in ["..first", "..second"] {
        fs::create_dir(directory.join(version)).unwrap();
        fs::write(directory.join(version).join("rules.yaml"), version).unwrap();
    }
    symlink("..first", directory.join("..data")).unwrap();
    symlink("..data/rules.yaml", directory.join("rules.yaml")).unwrap();
    let mut watch = watch(&directory.join("rules.yaml"));
    assert_eq!(watch.look(), Look::Same);
    symlink("..second", directory.join("..data_tmp")).unwrap();
    fs::rename(directory.join("..data_tmp"), directory.join("..data")).unwrap();
    changes_once(&mut watch);
}

#[test]
fn a_file_that_is_gone_for_a_moment_is_no_change_until_it_is_back() {
    let path = directory("gone").join("rules.yaml");
    fs::write(&path, "a").unwrap();
    let mut watch = watch(&path);
    fs::remove_file(&path).unwrap();
    assert_eq!((watch.look(), watch.look()), (Look::Gone, Look::Gone));
    fs::write(&path, "new").unwrap();
    changes_once(&mut watch);
}

#[test]
fn a_file_that_is_still_being_written_is_left_alone() {
    let path = directory("growing").join("rules.yaml");
    fs::write(&path, "a").unwrap();
    let mut watch = watch(&path);
    for length in 2..5 {
        fs::write(&path, "x".repeat(length)).unwrap();
        assert_eq!(watch.look(), Look::Unsettled);
    }
    assert_eq!(watch.look(), Look::Changed);
}

#[test]
fn a_file_that_comes_to_the_list_or_leaves_it_is_a_change() {
    let directory = directory("directory");
    fs::write(directory.join("a"), "a").unwrap();
    let its = directory.clone();
    let list = move || {
        fs::read_dir(&its)
            .ok()?
            .map(|entry| Some(entry.ok()?.path()))
            .collect()
    };
    let mut watch = Watch::new(list, 1 << 20);
    fs::write(directory.join("b"), "b").unwrap();
    changes_once(&mut watch);
    fs::remove_file(directory.join("a")).unwrap();
    changes_once(&mut watch);
}
