//! Room for connections of which nobody knows yet whose they are. Nobody who comes is turned away: where room runs
//! short, the one that has been there longest without a word goes, of the address that has the most. So whoever opens
//! many and says nothing keeps out nobody, not even whoever comes from the same address.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::sync::Notify;

/// What is known of a connection at both of its ends: in the room, and where it is served.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// What is under way on it.
    under_way: AtomicUsize,
    cut: Notify,
}

/// Something is under way on a connection, as long as this lives.
#[derive(Debug)]
pub(super) struct Engaged(Arc<Line>);

impl Line {
    /// Something begins on it.
    pub(super) fn engage(self: &Arc<Self>) -> Engaged {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        Engaged(Arc::clone(self))
    }

    fn is_silent(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) == 0
    }

    /// Cuts it.
    pub(super) fn hang_up(&self) {
        self.cut.notify_one();
    }

    /// Ends when somebody hangs up.
    pub(super) async fn hung_up(&self) {
        self.cut.notified().await;
    }
}

impl Drop for Engaged {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// See the module.
pub(super) struct Room {
    guests: Mutex<Guests>,
    guests_max: usize,
}

#[derive(Default)]
struct Guests {
    last_number: u64,
    /// In the order in which they came.
    by_number: BTreeMap<u64, Guest>,
}

struct Guest {
    origin: IpAddr,
    line: Arc<Line>,
}

/// One connection's place, as long as it lives.
pub(super) struct Place {
    room: Arc<Room>,
    number: u64,
    /// The connection.
    pub(super) line: Arc<Line>,
}

impl Room {
    /// Room for so many.
    pub(super) fn new(guests_max: usize) -> Arc<Self> {
        Arc::new(Self { guests: Mutex::default(), guests_max })
    }

    /// A place for one more connection from there. Another is cut for it where more than half of the room is taken and
    /// one is silent, or all of it is.
    pub(super) fn enter(self: &Arc<Self>, origin: IpAddr, line: Arc<Line>) -> Place {
        let mut guests = self.guests.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = guests.by_number.len();
        let silent = || (taken >= self.guests_max / 2).then(|| guests.oldest_of_the_most(Line::is_silent)).flatten();
        let any = || (taken >= self.guests_max).then(|| guests.oldest_of_the_most(|_| true)).flatten();
        if let Some(number) = silent().or_else(any)
            && let Some(guest) = guests.by_number.remove(&number)
        {
            guest.line.hang_up();
        }
        guests.last_number += 1;
        let number = guests.last_number;
        guests.by_number.insert(number, Guest { origin, line: Arc::clone(&line) });
        Place { room: Arc::clone(self), number, line }
    }
}

impl Guests {
    /// Of those that are such, and of the address that has the most of them, who came first.
    fn oldest_of_the_most(&self, is_such: impl Fn(&Line) -> bool) -> Option<u64> {
        let such = || self.by_number.iter().filter(|(_, guest)| is_such(&guest.line));
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for (_, guest) in such() {
            *counts.entry(guest.origin).or_default() += 1;
        }
        let most = counts.values().max().copied()?;
        such().find(|(_, guest)| counts.get(&guest.origin) == Some(&most)).map(|(number, _)| *number)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut guests = self.room.guests.lock().unwrap_or_else(PoisonError::into_inner);
        // It may have been cut.
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

    /// Connections that came from there, in that order.
    fn come(room: &Arc<Room>, from: u8, count: usize) -> Vec<Place> {
        (0..count).map(|_| room.enter(address(from), Arc::default())).collect()
    }

    #[test]
    fn above_half_the_oldest_silent_one_goes() {
        let room = Room::new(8);
        let first = come(&room, 1, 4);
        assert!(!first.iter().any(is_cut), "there is room");
        let _talks = first[0].line.engage();
        let _more = come(&room, 1, 1);
        assert_eq!(first.iter().map(is_cut).collect::<Vec<_>>(), [false, true, false, false]);
    }

    #[test]
    fn whoever_has_the_most_makes_room() {
        let room = Room::new(8);
        let others = come(&room, 2, 1);
        let many = come(&room, 1, 4);
        assert_eq!((others.iter().filter(|place| is_cut(place)).count(), is_cut(&many[0])), (0, true));
        let more = come(&room, 3, 1);
        assert!(is_cut(&many[1]) && !is_cut(&others[0]) && !is_cut(&more[0]), "he came last and stays");
    }

    #[test]
    fn those_that_talk_stay_until_all_is_taken() {
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
