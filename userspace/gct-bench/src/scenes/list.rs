// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Lists the scenes of each part: one pair at many loads (Tally's figure 6a) or over time (6b), a
//! service beside many trainings (7a), two services and a training, LithOS's stacking (14), batches
//! and lengths of sequences of the training (LithOS's figure 21), a language model beside diffusion
//! (GVM's 7.3.2), eight services (SGDRC's 9.2). The scenes of [`crate::variants`] are here, too.

use super::{Scene, SIZES};
use crate::arrivals::Arrivals;
use crate::eight::{self, EIGHT};
use crate::models::{DIFFUSION, TRAININGS};
use crate::slices::{self, SLICES};
use crate::stacking::{self, STACKING};
use crate::traffic::{self, TRAFFIC};
use crate::variants::{DECOMPOSITION, DUTY, GOALS, LENGTHS};

/// Returns a scene for each training, with a service at half load.
fn beside(service: &'static str, trainings: &[&'static str]) -> Vec<Scene> {
    let each = trainings.iter().map(|training| {
        let name = format!("beside training {training}");
        Scene::new(name, &[(service, 0.5)], &[*training])
    });
    each.collect()
}

/// Returns the scenes of a part.
pub(crate) fn scenes(part: &str, arrivals: Arrivals) -> Vec<Scene> {
    let mut scenes: Vec<Scene> = match part {
        "load" => [0.1, 0.3, 0.5, 0.7, 0.9]
            .map(|load| Scene::new("beside training resnet50", &[("bert", load)], &["resnet50"]))
            .into(),
        "tenants" => [1, 2, 4, 9]
            .map(|count| {
                let name = format!("beside {count} trainings");
                Scene::new(name, &[("bert", 0.5)], &vec!["bert"; count])
            })
            .into(),
        SIZES => beside(
            "bert",
            &[
                "bert-4x256",
                "bert-16x256",
                "bert-64x256",
                "bert-16x64",
                "bert-16x128",
                "bert-16x512",
            ],
        ),
        LENGTHS => beside("bert", &["resnet50", "lora"]),
        DECOMPOSITION => beside("bert", &TRAININGS),
        DUTY => beside("decode", &["unet"]),
        GOALS => beside("bert", &["resnet50", "unet"]),
        DIFFUSION => ["prefill", "decode"]
            .map(|service| {
                // Programs of one scene run at the same time.
                let name = format!("{service} beside {DIFFUSION}");
                Scene::new(name, &[(service, 0.5)], &[DIFFUSION])
            })
            .into(),
        EIGHT => {
            let name = format!("eight services beside training {}", eight::TRAINING);
            let services = eight::SERVICES.map(|service| (service, eight::LOAD));
            let scene = Scene::new(name, &services, &[eight::TRAINING]);
            vec![scene.detailed(eight::LENGTH, eight::within)]
        }
        TRAFFIC => {
            let (service, training) = traffic::PAIR;
            let scenes = beside(service, &[training]);
            let length = traffic::STRETCHES as f64;
            let each = scenes.into_iter();
            each.map(|scene| scene.detailed(length, traffic::over_time))
                .collect()
        }
        SLICES => {
            let services = slices::SERVICES;
            let [(long, _), (short, _)] = services;
            let name = format!("{long} and {short} beside training lora");
            vec![Scene::new(name, &services, &["lora"])]
        }
        STACKING => stacking::SCENES
            .map(|services| {
                let name = stacking::name(services);
                let scene = Scene::new(name, &services, &[stacking::BEST_EFFORT]);
                scene.titled(stacking::SERVICE, stacking::judged)
            })
            .into(),
        _ => [
            ("bert", "resnet50"),
            ("prefill", "resnet50"),
            ("decode", "bert"),
        ]
        .map(|(first, second)| {
            let name = format!("{first} and {second} beside training lora");
            Scene::new(name, &[(first, 0.4), (second, 0.2)], &["lora"])
        })
        .into(),
    };
    for scene in &mut scenes {
        scene.arrivals = match (part, arrivals) {
            (TRAFFIC, Arrivals::Poisson) => Arrivals::Day,
            _ => arrivals,
        };
    }
    scenes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::SERVICES;

    #[test]
    fn the_programs_have_the_models_of_every_scene() {
        let parts = [
            "load",
            "tenants",
            "services",
            SIZES,
            LENGTHS,
            DECOMPOSITION,
            DUTY,
            GOALS,
            SLICES,
            STACKING,
            DIFFUSION,
            EIGHT,
            TRAFFIC,
        ];
        for scene in parts
            .iter()
            .flat_map(|part| scenes(part, Arrivals::Poisson))
        {
            assert!(scene.services.iter().all(|(name, _)| {
                let (model, instance) = name.split_once('-').unwrap_or((name, "2"));
                SERVICES.contains(&model) && instance.parse::<u32>().is_ok()
            }));
            for name in scene.trainings {
                if let Some(model) = name.strip_prefix("closed-") {
                    assert!(SERVICES.contains(&model), "{name}");
                    continue;
                }
                let (model, sizes) = name.split_once('-').unwrap_or((name, "1x1"));
                assert!(TRAININGS.contains(&model) || name == DIFFUSION, "{name}");
                let (sequences, length) = sizes.split_once('x').unwrap();
                assert!([sequences, length].iter().all(|n| n.parse::<u32>().is_ok()));
            }
        }
    }

    #[test]
    fn a_training_of_each_size_has_a_table() {
        let titles = scenes(SIZES, Arrivals::Poisson)
            .into_iter()
            .map(|scene| scene.table(0).title);
        let titles: std::collections::BTreeSet<String> = titles.collect();
        assert_eq!(titles.len(), 6);
        assert!(titles.contains("Scene beside training bert-4x256: bert at 50%"));
    }
}
