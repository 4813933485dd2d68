//! A store that is far away, for benches: forwards connections to the server on the port in the
//! first argument. Requests and replies take half of the milliseconds in the second each. Prints
//! its own port, and ends with its standard input.

use std::{
    io::{Read, stdin},
    time::Duration,
};

use tidegate_redis_servers::Proxy;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let port = arguments.next().and_then(|port| port.parse().ok());
    let delay = arguments.next().and_then(|millis| millis.parse().ok());
    let (Some(port), Some(delay)) = (port, delay) else {
        eprintln!("usage: delay PORT MILLISECONDS");
        std::process::exit(2);
    };
    let proxy = Proxy::before(port);
    let delay = Duration::from_millis(delay) / 2;
    proxy.delay_requests(delay);
    proxy.delay(delay);
    println!("{}", proxy.port());
    // An error ends it, too.
    let _ = stdin().read_to_end(&mut Vec::new());
}
