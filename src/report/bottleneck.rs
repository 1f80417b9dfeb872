//! What binds a prediction, in words.

use plimsoll_core::machine::ResourceKind;
use plimsoll_core::summary::Summary;

use super::percent;

/// A resource that is busy for a larger share of the time binds alone.
const ALL_THE_TIME: f64 = 0.9;

/// What binds a prediction, in a sentence: the busiest resource, and what stages lose by waiting for each
/// other where that is most of what their GPUs do not work.
pub fn bottleneck_text(summary: &Summary) -> String {
    let share = summary.busy_fraction.of(summary.bottleneck);
    let busiest = format!(
        "{} is busy {} of the time",
        in_words(summary.bottleneck),
        percent(share)
    );
    let bubbles = bubbles(summary);
    let idle = 1.0 - summary.busy_fraction.gpu;
    // What is busy all the time is waited for, however stages share the work.
    if bubbles <= idle / 2.0 || summary.stages.is_empty() || share > ALL_THE_TIME {
        return busiest;
    }
    format!(
        "{busiest}, and stages have nothing to do for {} of it (bubbles, which more micro-batches or \
         fewer stages make shorter)",
        percent(bubbles)
    )
}

/// Share of the time in which a stage has no pass under way, on average.
fn bubbles(summary: &Summary) -> f64 {
    let all: f64 = summary.stages.iter().map(|stage| stage.bubble).sum();
    all / summary.stages.len().max(1) as f64
}

/// A resource as people say it.
pub(super) const fn in_words(resource: ResourceKind) -> &'static str {
    match resource {
        ResourceKind::Gpu => "GPU",
        ResourceKind::Cpu => "CPU",
        ResourceKind::H2d => "host to device",
        ResourceKind::D2h => "device to host",
        ResourceKind::DiskRead => "disk read",
        ResourceKind::DiskWrite => "disk write",
        ResourceKind::PeerLink => "link between stages",
        ResourceKind::Pin => "copies to page-locked memory",
        ResourceKind::Sync => "barriers",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Two stages whose GPUs work for so large a share of the time, and the link from the host for another.
    fn staged(bottleneck: &str, [gpu, h2d]: [f64; 2]) -> Summary {
        let busy =
            json!({"gpu": gpu, "h2d": h2d, "d2h": 0, "disk_read": 0, "disk_write": 0, "cpu": 0});
        let stage = json!({
            "prefill_bubble": 0.3, "decode_bubble": 0.3, "bubble": 0.3, "busy_fraction": busy,
            "peak_bytes": {"device": 1, "host": 1, "disk": 0}
        });
        let summary = json!({
            "throughput_tok_s": 1, "latency_s": 1, "prefill_s": 0.5, "decode_s": 0.5, "generated_tokens": 1,
            "peak_bytes": {"device": 1, "host": 1, "disk": 0}, "busy_fraction": busy, "bottleneck": bottleneck,
            "stages": [stage, stage]
        });
        serde_json::from_value(summary).expect("a summary")
    }

    #[test]
    fn bubbles_are_what_binds_unless_something_is_busy_all_the_time() {
        let says = |bottleneck, busy| bottleneck_text(&staged(bottleneck, busy));
        let waits = says("gpu", [0.6, 0.1]);
        assert!(
            waits.starts_with("GPU is busy 60% of the time, and stages have nothing to do for 30%"),
            "{waits}"
        );
        assert_eq!(
            says("h2d", [0.6, 0.95]),
            "host to device is busy 95% of the time"
        );
        // Most of what GPUs do not work is something else.
        assert_eq!(says("gpu", [0.3, 0.1]), "GPU is busy 30% of the time");
    }
}
