"""The door to AWS: boto3 is imported here only, and what it raises becomes an error that says what to do.

Credentials and region come from where boto3 looks for them: environment, ~/.aws, the role of an instance or a job.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dfmp2.errors import BackendUnavailable, Dfmp2Error, InputError, ResourceError

INSTALL = "pip install 'dfmp2[aws]'"
RETRIES = 6  # of one request, by botocore, with growing pauses
CREDENTIALS = "run `aws configure`, set AWS_PROFILE, or give the instance or the job a role"
REGION = "pass --region, set AWS_REGION, or write it into ~/.aws/config"
# Codes in the answers of Batch and S3 (AWS documentation, "Common error types" and "S3 error responses").
NOT_KNOWN = {
    "AuthFailure",
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}
NOT_ALLOWED = {"403", "AccessDenied", "AccessDeniedException", "AllAccessDisabled", "UnauthorizedOperation"}
NOT_THERE = {"404", "NoSuchBucket", "NoSuchKey", "NotFound"}
WRONG = {"301", "400", "ClientException", "InvalidBucketName", "PermanentRedirect", "ValidationException"}


def connect(service: str, region: str | None = None, profile: str | None = None) -> Any:
    """A client of "batch" or "s3".

    Parameters
    ----------
    region, profile : None for what the environment or ~/.aws says

    Raises
    ------
    BackendUnavailable : boto3, credentials or region are missing
    """
    try:
        import boto3
        from botocore.config import Config
    except ImportError as error:
        raise BackendUnavailable(f"AWS needs the boto3 package ({error}): {INSTALL}") from error
    with asking(f"connecting to {service}"):
        session = boto3.Session(region_name=region, profile_name=profile)
        settings = Config(retries={"mode": "standard", "max_attempts": RETRIES})
        client = session.client(service, config=settings)
        if session.get_credentials() is None:
            raise BackendUnavailable(f"there are no AWS credentials: {CREDENTIALS}")
    return client


@contextmanager
def asking(what: str) -> Iterator[None]:
    """Translate what goes wrong in the block.

    Parameters
    ----------
    what : is done there, for the message

    Raises
    ------
    BackendUnavailable : no credentials that AWS knows, or no region
    InputError : something named does not exist, or is not as AWS wants it
    ResourceError : it is not allowed, or AWS cannot be reached
    """
    from boto3.exceptions import Boto3Error
    from botocore import exceptions

    missing = (
        exceptions.CredentialRetrievalError,
        exceptions.NoCredentialsError,
        exceptions.PartialCredentialsError,
        exceptions.ProfileNotFound,
        exceptions.SSOError,
        exceptions.TokenRetrievalError,
    )
    try:
        yield
    except exceptions.ClientError as error:
        raise _refused(what, error.response) from error
    except exceptions.NoRegionError as error:
        raise BackendUnavailable(f"{what}: no AWS region is known: {REGION}") from error
    except missing as error:
        raise BackendUnavailable(f"{what}: no AWS credentials ({error}): {CREDENTIALS}") from error
    except exceptions.ParamValidationError as error:
        raise InputError(f"{what}: AWS does not take this: {_one_line(error)}") from error
    except (exceptions.BotoCoreError, Boto3Error) as error:
        raise ResourceError(f"{what}: AWS did not answer as expected ({_one_line(error)}): try again later") from error


def _refused(what: str, response: Any) -> Dfmp2Error:
    """The error for an answer other than success."""
    told = response.get("Error", {})
    code, message = str(told.get("Code", "")), _one_line(told.get("Message", ""))
    if code in NOT_KNOWN:
        return BackendUnavailable(f"{what}: AWS does not accept the credentials ({code}: {message}): {CREDENTIALS}")
    if code in NOT_ALLOWED:
        return ResourceError(
            f"{what}: these credentials may not do that ({code}: {message}): allow it in the policy of the user or role"
        )
    if code in NOT_THERE:
        return InputError(f"{what}: there is no such thing ({code}: {message}): check the name and the region")
    if code in WRONG:
        return InputError(f"{what}: AWS refuses ({code}: {message}): check names, region and values")
    return ResourceError(f"{what}: AWS answered {code}: {message}: try again later")


def _one_line(text: object) -> str:
    return " ".join(str(text).split())
