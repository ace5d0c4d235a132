//! Room for connections of unknown peers. Every newcomer gets a place; if room is short, another connection is cut for
//! it. Stalled ones go first, and of these the oldest one of the network with the most. So other clients get in despite
//! a flood of idle connections, even from the same address. And a large site behind one address is spared when the idle
//! connections come from elsewhere.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

/// Time after which a connection counts as stalled: a healthy client sends its first byte, its handshake and its call
/// within a few round trips.
const STALLED_AFTER: Duration = Duration::from_secs(1);
/// The part of an IPv6 address that a provider assigns to a whole site.
const SITE: u128 = u128::MAX << 80;

/// State of a connection, shared by the room and the code that serves it.
#[derive(Debug)]
pub(super) struct Line {
    state: Mutex<LineState>,
    cut: Notify,
}

#[derive(Debug)]
struct LineState {
    /// Operations under way on it.
    under_way: usize,
    /// Time of the last begin or end of an operation.
    since: Instant,
}

impl Default for Line {
    fn default() -> Self {
        Self { state: Mutex::new(LineState { under_way: 0, since: Instant::now() }), cut: Notify::new() }
    }
}

/// An operation under way on a connection, while this lives.
#[derive(Debug)]
pub(super) struct Engaged(Arc<Line>);

impl Line {
    /// Begin an operation.
    pub(super) fn engage(self: &Arc<Self>) -> Engaged {
        let mut state = self.state();
        *state = LineState { under_way: state.under_way + 1, since: Instant::now() };
        drop(state);
        Engaged(Arc::clone(self))
    }

    fn state(&self) -> MutexGuard<'_, LineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_silent(&self) -> bool {
        self.state().under_way == 0
    }

    fn has_stalled(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.state().since) > STALLED_AFTER
    }

    /// Cut the connection.
    pub(super) fn hang_up(&self) {
        self.cut.notify_one();
    }

    /// Completes when the connection is to be cut.
    pub(super) async fn hung_up(&self) {
        self.cut.notified().await;
    }
}

impl Drop for Engaged {
    fn drop(&mut self) {
        let mut state = self.0.state();
        *state = LineState { under_way: state.under_way.saturating_sub(1), since: Instant::now() };
    }
}

/// Room for a limited number of connections; see the module.
pub(super) struct Room {
    guests: Mutex<Guests>,
    guests_max: usize,
}

#[derive(Default)]
struct Guests {
    last_number: u64,
    /// Connections in the order of arrival.
    by_number: BTreeMap<u64, Guest>,
}

struct Guest {
    origin: IpAddr,
    line: Arc<Line>,
}

/// One connection's place, while it lives.
pub(super) struct Place {
    room: Arc<Room>,
    number: u64,
    /// The connection.
    pub(super) line: Arc<Line>,
}

impl Room {
    /// Create a room with this capacity.
    pub(super) fn new(guests_max: usize) -> Arc<Self> {
        Arc::new(Self { guests: Mutex::default(), guests_max })
    }

    /// A place for a new connection from `origin`. If more than half of the room is taken, a silent connection that has
    /// stalled is cut for it. If all is taken, a stalled one is cut, else a silent one, else any.
    pub(super) fn enter(self: &Arc<Self>, origin: IpAddr, line: Arc<Line>) -> Place {
        self.enter_at(origin, line, Instant::now())
    }

    fn enter_at(self: &Arc<Self>, origin: IpAddr, line: Arc<Line>, now: Instant) -> Place {
        let mut guests = self.guests.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = self.makes_room(&guests, now)
            && let Some(guest) = guests.by_number.remove(&number)
        {
            guest.line.hang_up();
        }
        guests.last_number += 1;
        let number = guests.last_number;
        guests.by_number.insert(number, Guest { origin, line: Arc::clone(&line) });
        Place { room: Arc::clone(self), number, line }
    }

    /// The connection to cut for a newcomer.
    fn makes_room(&self, guests: &Guests, now: Instant) -> Option<u64> {
        let taken = guests.by_number.len();
        let idle = |line: &Line| line.is_silent() && line.has_stalled(now);
        let half = || guests.oldest_of_the_most(idle);
        let full = || {
            let stalled = || guests.oldest_of_the_most(|line| line.has_stalled(now));
            let silent = || guests.oldest_of_the_most(Line::is_silent);
            stalled().or_else(silent).or_else(|| guests.oldest_of_the_most(|_| true))
        };
        let idle = (taken >= self.guests_max / 2).then(half).flatten();
        idle.or_else(|| (taken >= self.guests_max).then(full).flatten())
    }
}

/// The site of an address: for IPv6 the /48, because one site can use any /64 in it.
fn site(origin: IpAddr) -> IpAddr {
    match origin {
        IpAddr::V4(_) => origin,
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & SITE)),
    }
}

impl Guests {
    /// The oldest matching connection, from the network with the most of them, in the site with the most.
    fn oldest_of_the_most(&self, is_such: impl Fn(&Line) -> bool) -> Option<u64> {
        let such: Vec<(u64, IpAddr)> = self
            .by_number
            .iter()
            .filter(|(_, guest)| is_such(&guest.line))
            .map(|(number, guest)| (*number, guest.origin))
            .collect();
        let of_site = of_the_most(&such, site);
        of_the_most(&of_site, |origin| origin).first().map(|(number, _)| *number)
    }
}

/// The members of the largest group; on a tie, of the group that came first.
fn of_the_most(guests: &[(u64, IpAddr)], group: impl Fn(IpAddr) -> IpAddr) -> Vec<(u64, IpAddr)> {
    let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for (_, origin) in guests {
        *counts.entry(group(*origin)).or_default() += 1;
    }
    let most = counts.values().max();
    let first = guests.iter().map(|(_, origin)| group(*origin)).find(|of| counts.get(of) == most);
    guests.iter().copied().filter(|(_, origin)| Some(group(*origin)) == first).collect()
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut guests = self.room.guests.lock().unwrap_or_else(PoisonError::into_inner);
        // It may have been cut already.
        guests.by_number.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures_util::FutureExt as _;

    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
    }

    fn is_cut(place: &Place) -> bool {
        place.line.hung_up().now_or_never().is_some()
    }

    /// New connections from this address.
    fn come(room: &Arc<Room>, from: u8, count: usize) -> Vec<Place> {
        (0..count).map(|_| room.enter(address(from), Arc::default())).collect()
    }

    fn v6(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    /// A time at which all present connections have stalled.
    fn later() -> Instant {
        Instant::now() + STALLED_AFTER + Duration::from_millis(1)
    }

    #[test]
    fn above_half_the_oldest_stalled_one_goes() {
        let room = Room::new(8);
        let first = come(&room, 1, 4);
        let _talks = first[0].line.engage();
        let fresh = come(&room, 1, 1);
        assert!(!first.iter().any(is_cut), "there is room, and none has stalled");
        let _more = room.enter_at(address(1), Arc::default(), later());
        assert_eq!(first.iter().map(is_cut).collect::<Vec<_>>(), [false, true, false, false]);
        assert!(!is_cut(&fresh[0]));
    }

    #[test]
    fn network_with_the_most_makes_room() {
        let room = Room::new(5);
        let others = come(&room, 2, 1);
        let many = come(&room, 1, 4);
        let more = come(&room, 3, 1);
        assert!(is_cut(&many[0]) && !is_cut(&others[0]));
        let last = come(&room, 3, 1);
        assert!(is_cut(&many[1]) && !is_cut(&others[0]) && !is_cut(&more[0]) && !is_cut(&last[0]));
    }

    /// Stalled connections, one each from many networks, against a site whose machines share one address.
    #[test]
    fn stalled_ones_go_before_a_large_site() {
        for speaks in [false, true] {
            let room = Room::new(8);
            let (mut stalled, mut held) = (Vec::new(), Vec::new());
            for n in 0..4 {
                let place = room.enter(v6(&format!("2001:db8:{n}::")), Arc::default());
                held.extend(speaks.then(|| place.line.engage()));
                stalled.push(place);
            }
            let now = later();
            let site: Vec<Place> = (0..8)
                .map(|_| {
                    let line = Arc::new(Line::default());
                    line.state().since = now;
                    room.enter_at(address(1), line, now)
                })
                .collect();
            assert_eq!(stalled.iter().filter(|place| is_cut(place)).count(), 4, "speaks: {speaks}");
            assert!(!site.iter().any(is_cut), "speaks: {speaks}");
        }
    }

    #[test]
    fn networks_of_one_site_count_together() {
        let room = Room::new(6);
        let come_from = |text: String| room.enter(v6(&text), Arc::default());
        let many: Vec<Place> = (0..4).map(|n| come_from(format!("2001:db8:7:{n}::"))).collect();
        let pair: Vec<Place> = (0..2).map(|_| come_from("2001:db8:8:1::".to_owned())).collect();
        let _newcomer = come_from("2001:db8:9::".to_owned());
        assert!(is_cut(&many[0]) && !pair.iter().any(is_cut), "four networks of one /48 are more than two of one /64");
    }

    #[test]
    fn busy_ones_stay_until_all_is_taken() {
        let room = Room::new(4);
        let talking = |from| {
            let place = room.enter(address(from), Arc::default());
            let engaged = place.line.engage();
            (place, engaged)
        };
        let mut all: Vec<_> = [1, 1, 1, 2].map(talking).into();
        assert!(!all.iter().any(|(place, _)| is_cut(place)));
        all.push(talking(2));
        assert_eq!(all.iter().map(|(place, _)| is_cut(place)).collect::<Vec<_>>(), [true, false, false, false, false]);
        drop(all);
        assert!(room.guests.lock().expect("lock").by_number.is_empty(), "what is over is forgotten");
    }
}
