use std::collections::HashMap;

use super::*;

const NOW: Nanos = Nanos::from_secs(1_800_000_000);

fn random(seed: &mut u64, below: u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed % below
}

fn part(seed: &mut u64, longest: u64, most: u64) -> Part {
    let mut taken = Estimates::default();
    for _ in 0..random(seed, most + 1) {
        let shift = random(seed, 53);
        let at = NOW.get() + random(seed, 1 << 40) - random(seed, 1 << 40);
        taken.add(Estimate { cost: random(seed, 1 << shift), taken: Nanos::new(at), place: random(seed, 3) });
    }
    let key = (0..random(seed, longest + 1)).map(|_| random(seed, 256) as u8).collect();
    let limit = format!("limit-{}", random(seed, 5)).into();
    Part { limit, key, taken, is_released: random(seed, 2) == 0 }
}

fn reservation(seed: &mut u64) -> Reservation {
    let (longest, most) = if random(seed, 4) == 0 { (1_024, 20) } else { (12, 1) };
    let parts = (0..random(seed, MOST_PARTS as u64 + 1)).map(|_| part(seed, longest, most)).collect();
    let ttl = Nanos::new([0, 1, 60_000_000_000, 86_400_000_000_000, u64::MAX][random(seed, 5) as usize]);
    let status = [Status::Open, Status::Expired, Status::Done][random(seed, 3) as usize];
    Reservation { parts, ttl, due: Nanos::new(random(seed, u64::MAX)), status }
}

fn parts_of(limit: &str, cost: u64) -> [Part<String, &'static [u8]>; 1] {
    let taken = Estimate { cost, taken: NOW, place: 7 }.into();
    [Part { limit: limit.to_owned(), key: b"alice", taken, is_released: true }]
}

fn add(records: &mut Records, id: Id, of: &Reservation) -> u32 {
    let Reservation { ref parts, ttl, due, status } = *of;
    records.add(id, &Reservation { parts: &parts[..], ttl, due, status })
}

#[test]
fn records_are_what_was_kept_and_their_cells_are_used_again() {
    let (mut records, mut model, mut seed) = (Records::default(), HashMap::new(), 7);
    let mut fill = |records: &mut Records| {
        for step in 0..20_000 {
            let id = Id(u128::from(random(&mut seed, 500)) << 60 | 5);
            match (records.find(id), random(&mut seed, 3)) {
                (None, _) => {
                    let new = reservation(&mut seed);
                    add(records, id, &new);
                    model.insert(id, new);
                }
                (Some(head), 0) => {
                    assert_eq!(records.get(head), (id, model.remove(&id).unwrap()));
                    records.forget(head);
                }
                (Some(head), _) => {
                    let new = reservation(&mut seed);
                    records.replace(id, head, &new);
                    model.insert(id, new);
                }
            }
            if step % 1_000 == 0 {
                assert_eq!(records.len(), model.len());
                assert_eq!(records.all().collect::<HashMap<_, _>>(), model);
            }
        }
        for id in std::mem::take(&mut model).into_keys() {
            records.forget(records.find(id).unwrap());
        }
    };
    fill(&mut records);
    let cells = records.cells_used();
    assert_eq!(cells.0, 0);
    fill(&mut records);
    assert_eq!(records.cells_used().0, 0);
    assert!(records.cells_used().1 < cells.1 * 3 / 2, "{} cells after {}", records.cells_used().1, cells.1);
}

#[test]
fn limits_that_no_reservation_has_are_forgotten() {
    let mut records = Records::default();
    for number in 0..10_000 {
        let parts = parts_of(&format!("limit-{number}"), 1);
        let id = Id(number);
        let head =
            records.add(id, &Reservation { parts: &parts[..], ttl: NOW, due: NOW, status: Status::Open });
        assert_eq!(*records.get(head).1.parts[0].limit, *format!("limit-{number}"));
        if number >= 10 {
            records.forget(records.find(Id(number - 10)).unwrap());
        }
    }
    assert!(records.sources() <= 2 * 10 + 64 + 1, "{} names", records.sources());
}

#[test]
fn a_long_record_can_be_replaced_by_one_with_new_limits() {
    let mut records = Records::default();
    for number in 0..5_000 {
        let key = vec![number as u8; 300].into();
        let part = Part { limit: format!("limit-{number}").into(), key, ..part(&mut 7, 0, 1) };
        let new = Reservation { parts: vec![part], ttl: NOW, due: NOW, status: Status::Open };
        let id = Id(number % 7);
        match records.find(id) {
            Some(head) => records.replace(id, head, &new),
            None => drop(add(&mut records, id, &new)),
        }
        assert_eq!(records.get(records.find(id).unwrap()), (id, new));
    }
    assert!(records.sources() <= 2 * 7 + 64 + 1, "{} names", records.sources());
}

#[test]
fn a_reservation_expires_at_its_time_and_is_forgotten_a_minute_later() {
    let kept = Reservations::new(2);
    let (ttl, ns) = (Nanos::from_secs(10), Nanos::new(1));
    let of = |time: Nanos| time.saturating_add(ttl);
    let id = kept.add(&parts_of("tokens", 3), ttl, NOW).unwrap();
    let more = Estimate { cost: 4, taken: NOW.saturating_add(ns), place: 7 };
    kept.extend(id, &[more], NOW.saturating_add(ns)).unwrap();
    let due = of(NOW.saturating_add(ns));
    assert_eq!(kept.expire(of(NOW)), []);
    let released = kept.expire(due);
    assert_eq!(released.iter().map(|part| part.taken.cost()).collect::<Vec<_>>(), [7]);
    assert_eq!(kept.extend(id, &[more], due), Err(ReservationError::Ended));
    let forgotten = due.saturating_add(REMEMBERED);
    assert_eq!(kept.expire(Nanos::new(forgotten.get() - 1)), []);
    assert_eq!(kept.parts(id).unwrap(), released);
    assert_eq!(kept.expire(forgotten), []);
    assert_eq!((kept.parts(id), kept.len()), (Err(ReservationError::Unknown), 0));
}

#[test]
fn the_shards_together_keep_the_most_and_make_room_again() {
    let kept = Reservations::new(200);
    let add = |now| kept.add(&parts_of("tokens", 1), Nanos::from_secs(1), now);
    let ids: Vec<Id> = (0..200).map(|_| add(NOW).unwrap()).collect();
    let full = Err(ReservationError::TooMany { most: 200 });
    assert_eq!((add(NOW), kept.has_room()), (full.clone(), full.map(|_: Id| ())));
    let (text, due) = kept.texts(kept.seen()).next().unwrap();
    assert!(!kept.restore(&text, due), "it is there already");
    assert_eq!(kept.seen().len(), 200);
    let ended = kept.end(ids[0], Some(1), NOW).unwrap().unwrap();
    assert!(!ended.is_late && kept.end(ids[0], None, NOW) == Ok(None));
    let later = NOW.saturating_add(Nanos::from_secs(1));
    assert_eq!((kept.expire(later).len(), kept.len()), (199, 200));
    kept.expire(later.saturating_add(REMEMBERED));
    assert_eq!(kept.len(), 0);
    assert!(kept.restore(&text, due) && kept.len() == 1);
}

#[test]
fn each_reservation_expires_and_is_forgotten_at_the_first_look_after_its_time() {
    struct Kept {
        id: Id,
        ttl: Nanos,
        due: Nanos,
        is_open: bool,
    }
    let (kept, mut seed, mut now) = (Reservations::new(usize::MAX), 11, NOW);
    let mut model: HashMap<u64, Kept> = HashMap::new();
    for number in 0..20_000 {
        let shift = random(&mut seed, 42);
        let step = Nanos::new(random(&mut seed, 1 << shift));
        // The clock may be set back, too.
        now = if random(&mut seed, 9) == 0 {
            Nanos::new(now.get() - step.get())
        } else {
            now.saturating_add(step)
        };
        let shift = random(&mut seed, 50);
        let ttl = Nanos::new(1 + random(&mut seed, 1 << shift));
        let taken = Estimate { cost: 1, taken: now, place: 7 }.into();
        let part = Part { limit: "tokens", key: number.to_string(), taken, is_released: true };
        let id = kept.add(&[part], ttl, now).unwrap();
        model.insert(number, Kept { id, ttl, due: now.saturating_add(ttl), is_open: true });
        if let Some(Kept { id, ttl, due, is_open }) = model.get_mut(&random(&mut seed, number + 1)) {
            let more = Estimate { cost: 1, taken: now, place: 7 };
            let extended = kept.extend(*id, &[more], now);
            assert_eq!(extended.is_ok(), *is_open && now < *due);
            if extended.is_ok() {
                *due = now.saturating_add(*ttl).max(*due);
            }
        }
        if random(&mut seed, 5) == 0 {
            let mut expired = Vec::new();
            model.retain(|number, kept| {
                if kept.due <= now && kept.is_open {
                    expired.push(number.to_string().into_bytes());
                    kept.is_open = false;
                    let due = kept.due.saturating_add(kept.ttl.max(REMEMBERED));
                    kept.due = due.max(now.saturating_add(Nanos::new(1)));
                }
                kept.due > now
            });
            let mut released: Vec<_> = kept.expire(now).iter().map(|part| part.key.to_vec()).collect();
            released.sort_unstable();
            expired.sort_unstable();
            assert_eq!(released, expired);
            assert_eq!(kept.len(), model.len());
        }
    }
    assert!(model.len() > 100 && model.len() < 19_000, "{} are left", model.len());
}

#[test]
fn an_id_is_read_as_it_was_written() {
    for id in [Id(0), Id(u128::MAX), Id(0x0123_4567_89ab_cdef_0f1e_2d3c_4b5a_6978)] {
        let text = id.to_string();
        assert_eq!(text, format!("{:032x}", id.0));
        assert_eq!((text.parse(), text.to_ascii_uppercase().parse()), (Ok(id), Ok(id)));
    }
    for text in
        ["", "0", "+0123456789abcdef0123456789abcde", "0123456789abcdef0123456789abcdeg", &"0".repeat(33)]
    {
        assert_eq!(text.parse::<Id>(), Err(ReservationError::NotAnId), "{text}");
    }
}
