//! A model on several GPUs: its layers in stages, its sequences in micro-batches (FlexGen section 4.4).

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// How a model is spread over GPUs. One stage is no pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pipeline {
    /// Parts of the model, one a GPU: the embedding is with the first, the head with the last.
    pub stages: u32,
    /// Micro-batches in a block: what follows each other through the stages. Each is `num_gpu_batches`
    /// GPU batches, which share a load of a stage's weights (an inner iteration of FlexGen's released
    /// distributed runtime).
    pub micro_batches: u32,
    /// Stages that have one host's memory, disk and CPU between them.
    pub stages_per_host: u32,
    /// How activations that live on the device get to the next stage's.
    pub comm: Comm,
    /// Layers of the last stage, which has the head besides; none: as many as the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_stage_layers: Option<u32>,
}

/// The way between two stages, for activations that live on the device and for new tokens. What lives on
/// a host or its disk goes from host to host in either case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Comm {
    /// From device to device (FlexGen's `--comm-device gpu`).
    Device,
    /// Down to the host, from host to host, and up again (FlexGen's `--comm-device cpu`).
    Host,
}

impl Default for Pipeline {
    fn default() -> Pipeline {
        Pipeline {
            stages: 1,
            micro_batches: 1,
            stages_per_host: 1,
            comm: Comm::Device,
            last_stage_layers: None,
        }
    }
}

impl Pipeline {
    /// Whether it is one stage on one GPU, as it is where nothing is said.
    pub fn is_default(&self) -> bool {
        *self == Pipeline::default()
    }

    /// Layers of each stage of a model of so many. Where they do not divide evenly, the first stages have
    /// one more, as in FlexGen's released code. There must be as many layers as stages; see
    /// [`LowerError::Stages`](crate::lower::LowerError::Stages).
    pub fn layers(&self, num_layers: u32) -> Vec<u32> {
        match self.last_stage_layers {
            None => even(num_layers, self.stages),
            Some(last) => {
                let mut layers = even(num_layers.saturating_sub(last), self.stages - 1);
                layers.push(last);
                layers
            }
        }
    }

    /// Each stage's blocks of a model of so many layers: the embedding is block 0, the head the last.
    pub fn blocks(&self, num_layers: u32) -> Vec<Range<u32>> {
        let mut end = 1;
        let layers = self.layers(num_layers);
        let mut blocks: Vec<Range<u32>> = layers
            .into_iter()
            .map(|layers| {
                end += layers;
                end - layers..end
            })
            .collect();
        if let Some(first) = blocks.first_mut() {
            first.start = 0;
        }
        if let Some(last) = blocks.last_mut() {
            last.end += 1;
        }
        blocks
    }

    /// Whether every stage of a model of so many layers has one.
    pub fn fills_stages(&self, num_layers: u32) -> bool {
        let rest = num_layers.saturating_sub(self.last_stage_layers.unwrap_or(0));
        match self.last_stage_layers {
            // One stage has all layers, whatever it is called.
            Some(last) if self.stages == 1 => last == num_layers,
            Some(last) => last > 0 && last < num_layers && rest >= self.stages - 1,
            None => rest >= self.stages,
        }
    }
}

/// So many layers over so many stages, the first of which have one more where they must.
fn even(layers: u32, stages: u32) -> Vec<u32> {
    let more = layers.checked_rem(stages).unwrap_or(0);
    let each = layers.checked_div(stages).unwrap_or(0);
    (0..stages)
        .map(|stage| each + u32::from(stage < more))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pipeline(stages: u32, last_stage_layers: Option<u32>) -> Pipeline {
        Pipeline {
            stages,
            last_stage_layers,
            ..Pipeline::default()
        }
    }

    #[test]
    fn layers_are_even_the_first_stages_have_the_rest() {
        assert_eq!(pipeline(4, None).layers(48), [12, 12, 12, 12]);
        assert_eq!(pipeline(4, None).layers(10), [3, 3, 2, 2]);
        assert_eq!(pipeline(3, Some(1)).layers(6), [3, 2, 1]);
        assert_eq!(pipeline(1, None).layers(6), [6]);
    }

    #[test]
    fn the_ends_are_with_the_first_and_the_last() {
        assert_eq!(pipeline(1, None).blocks(6), vec![0..8; 1]);
        assert_eq!(pipeline(2, None).blocks(6), [0..4, 4..8]);
        assert_eq!(pipeline(3, Some(1)).blocks(6), [0..4, 4..6, 6..8]);
    }

    #[test]
    fn no_stage_is_empty() {
        assert!(pipeline(6, None).fills_stages(6));
        assert!(!pipeline(7, None).fills_stages(6));
        assert!(pipeline(3, Some(4)).fills_stages(6));
        assert!(!pipeline(3, Some(5)).fills_stages(6));
        assert!(!pipeline(3, Some(0)).fills_stages(6));
    }
}
