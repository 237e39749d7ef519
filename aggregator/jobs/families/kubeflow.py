"""Kubeflow training-operator v1: PyTorchJob, TFJob and their like. Pure.

https://github.com/kubeflow/trainer/blob/release-1.9/pkg/apis/kubeflow.org/v1/common_types.go
"""

from aggregator.jobs.family import Family, Loss

JOB_NAME = "training.kubeflow.org/job-name"

TRAINING_OPERATOR = Family(
    name="training-operator",
    kind="training job",
    loss=Loss.GANG,
    job_keys=(JOB_NAME,),
    gang_keys=(JOB_NAME,),
    owner_kinds=("PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob"),
)
