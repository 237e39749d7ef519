"""The database in which several replicas keep the state of a cluster without Kubernetes."""

from aggregator.cluster.local.place import StorePlace
from aggregator.config.settings import Config
from aggregator.history.engine import DatabaseCredentials


def build_store(config: Config) -> StorePlace | None:
    """None where the state is in a file, or in an API server. Connects to nothing."""
    store = config.cluster.shared_store
    if store is None:
        return None
    return shared_place(store.database, store, config.replicas.name)


def shared_place(
    url: str, credentials: DatabaseCredentials | None = None, replica: str = ""
) -> StorePlace:
    """The database at ``url``. ``replica`` is in the name that its sessions show."""
    # The imports take half a second, which the user of a file need not spend.
    from sqlalchemy.engine import make_url

    from aggregator.cluster.local import postgres_rows as tables
    from aggregator.cluster.local.postgres_place import PostgresPlace
    from aggregator.history.postgres import Postgres
    from aggregator.runtime.database import Engine

    given = credentials or DatabaseCredentials()

    def engine(purpose: str) -> Engine:
        application = " ".join(filter(None, ("sickbay", replica, purpose)))
        settings = tables.SETTINGS
        return Postgres(make_url(url), given, application, tables, "cluster.store", settings)

    return PostgresPlace(engine("cluster").name, engine)
