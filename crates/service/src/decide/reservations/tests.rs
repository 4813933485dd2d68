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
        taken.add(Estimate {
            cost: random(seed, 1 << shift),
            taken: Nanos::new(at),
            place: random(seed, 3),
        });
    }
    let key = (0..random(seed, longest + 1))
        .map(|_| random(seed, 256) as u8)
        .collect();
    let limit = format!("limit-{}", random(seed, 5)).into();
    Part {
        limit,
        key,
        taken,
        is_released: random(seed, 2) == 0,
    }
}

fn reservation(seed: &mut u64) -> Reservation {
    let (longest, most) = if random(seed, 4) == 0 {
        (1_024, 20)
    } else {
        (12, 1)
    };
    let parts = (0..random(seed, MOST_PARTS as u64 + 1))
        .map(|_| part(seed, longest, most))
        .collect();
    let ttl =
        Nanos::new([0, 1, 60_000_000_000, 86_400_000_000_000, u64::MAX][random(seed, 5) as usize]);
    let status = [Status::Open, Status::Expired, Status::Done][random(seed, 3) as usize];
    Reservation {
        parts,
        ttl,
        due: Nanos::new(random(seed, u64::MAX)),
        status,
    }
}

fn parts_of(limit: &str, cost: u64) -> [Part<String, &'static [u8]>; 1] {
    let taken = Estimate {
        cost,
        taken: NOW,
        place: 7,
    }
    .into();
    [Part {
        limit: limit.to_owned(),
        key: b"alice",
        taken,
        is_released: true,
    }]
}

fn add(records: &mut Records, id: Id, of: &Reservation) -> u32 {
    let Reservation {
        ref parts,
        ttl,
        due,
        status,
    } = *of;
    records.add(
        id,
        &Reservation {
            parts: &parts[..],
            ttl,
            due,
            status,
        },
    )
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
    assert!(
        records.cells_used().1 < cells.1 * 3 / 2,
        "{} cells after {}",
        records.cells_used().1,
        cells.1
    );
}

#[test]
fn limits_that_no_reservation_has_are_forgotten() {
    let mut records = Records::default();
    for number in 0..10_000 {
        let parts = parts_of(&format!("limit-{number}"), 1);
        let id = Id(number);
        let head = records.add(
            id,
            &Reservation {
                parts: &parts[..],
                ttl: NOW,
                due: NOW,
                status: Status::Open,
            },
        );
        assert_eq!(
            *records.get(head).1.parts[0].limit,
            *format!("limit-{number}")
        );
        if number >= 10 {
            records.forget(records.find(Id(number - 10)).unwrap());
        }
    }
    assert!(
        records.sources() <= 2 * 10 + 64 + 1,
        "{} names",
        records.sources()
    );
}

#[test]
fn a_long_record_can_be_replaced_by_one_with_new_limits() {
    let mut records = Records::default();
    for number in 0..5_000 {
        let key = vec![number as u8; 300].into();
        let part = Part {
            limit: format!("limit-{number}").into(),
            key,
            ..part(&mut 7, 0, 1)
        };
        let new = Reservation {
            parts: vec![part],
            ttl: NOW,
            due: NOW,
            status: Status::Open,
        };
        let id = Id(number % 7);
        match records.find(id) {
            Some(head) => records.replace(id, head, &new),
            None => drop(add(&mut records, id, &new)),
        }
        assert_eq!(records.get(records.find(id).unwrap()), (id, new));
    }
    assert!(
        records.sources() <= 2 * 7 + 64 + 1,
        "{} names",
        records.sources()
    );
}
