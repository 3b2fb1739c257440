//! A lookup allocates nothing, however many routes there are. A binary of its own, since it counts what its allocator is asked for.

#[path = "../benches/fixture/mod.rs"]
mod fixture;

use allocation_counter::measure;
use fixture::{EXACT, LISTENERS, Lookups, PREFIXES, SERVICES, WILDCARD};

#[test]
fn a_lookup_allocates_nothing() {
    for family in [EXACT, WILDCARD, PREFIXES, SERVICES, LISTENERS] {
        for routes in [10, 1_000, 100_000] {
            let lookups = Lookups::new(family, routes, 1_000);
            let mut found = 0;
            let counted = measure(|| {
                found = lookups.keys(1_000).filter(|key| lookups.table.find(key).is_some()).count();
            });
            assert_eq!(found, 1_000, "{} of {routes} routes", family.name);
            assert_eq!(counted.count_total, 0, "{} of {routes} routes: {counted:?}", family.name);
        }
    }
}

#[test]
fn what_allocates_is_counted() {
    let counted = measure(|| drop(std::hint::black_box(Box::new(1_u64))));
    assert_eq!((counted.count_total, counted.bytes_total), (1, 8));
}
