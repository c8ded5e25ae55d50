"""What an instance of Amazon EC2 has, as far as a job definition must say it.

A job asks for all virtual CPUs of a Trainium instance: AWS Batch does not know Neuron devices as a resource, so two
jobs on one instance would be given the same ones.
Sources: "Amazon EC2 Trn1 architecture" of the AWS Neuron documentation; user guide of AWS Batch, "Compute resource
memory management".
"""

from __future__ import annotations

from dataclasses import dataclass

from dfmp2.batch.accelerators import CORES_PER_CHIP


@dataclass(frozen=True, slots=True)
class Instance:
    """A type of instance.

    Attributes
    ----------
    name : of the type
    target : of the compiler
    vcpus : virtual CPUs
    memory : MiB that a job may ask for, the instance's less what its system and the agent of Batch keep
    chips : /dev/neuron0 and so on
    """

    name: str
    target: str
    vcpus: int
    memory: int
    chips: int

    @property
    def cores(self) -> int:
        """NeuronCores: as many workers can have one of their own."""
        return CORES_PER_CHIP * self.chips

    @property
    def devices(self) -> list[str]:
        """Device files."""
        return [f"/dev/neuron{number}" for number in range(self.chips)]


INSTANCES = {
    instance.name: instance
    for instance in (
        Instance("trn1.2xlarge", "trn1", 8, 30_000, 1),  # 32 GiB
        Instance("trn1.32xlarge", "trn1", 128, 490_000, 16),  # 512 GiB
        Instance("trn1n.32xlarge", "trn1", 128, 490_000, 16),  # 512 GiB
    )
}
