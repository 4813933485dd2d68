//! The parts of the control plane for people: the dashboard, and the programs that report to it.

pub(crate) mod flow;
pub(crate) mod pages;
