//! docs/metrics.md names every metric there is, and none that is not.

use std::collections::BTreeSet;

use prometheus_client::registry::Registry;

#[test]
fn the_metrics_page_is_whole() {
    let mut registry = Registry::default();
    let _proxy = cftunnel::proxy::metrics::Metrics::register(&mut registry);
    let _connector = cftunnel::proxy::connector::Metrics::register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("a String takes it");
    let served: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# HELP ")?.split(' ').next())
        .filter(|n| n.starts_with("cftunnel_"))
        .collect();
    assert!(served.len() > 10, "{text}");

    let page = include_str!("../docs/metrics.md");
    let documented: BTreeSet<&str> = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    assert!(served.is_subset(&documented), "not on the page: {:?}", served.difference(&documented));
    // A family without a series yet is not in the answer: its name must be in the code.
    let sources = [include_str!("../src/proxy/metrics.rs"), include_str!("../src/proxy/connector/status.rs")];
    for name in documented.difference(&served) {
        assert!(sources.iter().any(|source| source.contains(&format!("\"{name}\""))), "on the page, but there is no {name}");
    }
}
