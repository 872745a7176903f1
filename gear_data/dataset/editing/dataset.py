"""The methods of `Dataset` that edit it. Each returns the store and the view of the edited dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gear_data.dataset.core import DatasetCore
from gear_data.dataset.editing.edit import check_editable, edited_columns, edited_facts
from gear_data.dataset.editing.facts import with_facts
from gear_data.dataset.editing.names import dropping, new_column, renaming
from gear_data.dataset.editing.values import described, shard_values
from gear_data.dataset.stores.store import DatasetStore
from gear_data.dataset.views import View
from gear_data.errors import InvalidArgumentError
from gear_data.storage.edits.changes import Edit

if TYPE_CHECKING:
    from gear_data.dataset.editing.values import ColumnValues


def with_column(dataset: DatasetCore, name: str, values: ColumnValues, role: str | None) -> tuple[DatasetStore, View]:
    """See `Dataset.with_column`."""
    store = dataset.store
    check_editable(store)
    if dataset.view.rows is not None:
        raise InvalidArgumentError(
            f"the view has {dataset.num_episodes} of {dataset.manifest.episodes} episodes, and a column is of all",
            hint="add the column to the whole dataset, and filter that; or save the view, and open it",
        )
    schema = dataset.manifest.schema
    name = new_column(schema, name, role)
    edit = Edit({each: each for each in schema.names})
    what = f"with_column {name} {described(values)}"
    return edited_columns(store, edit, shard_values(store, name, values), what), dataset.view


def renamed(dataset: DatasetCore, names: Mapping[str, str]) -> tuple[DatasetStore, View]:
    """See `Dataset.rename`."""
    check_editable(dataset.store)
    edit = renaming(dataset.manifest.schema, names)
    return edited_columns(dataset.store, edit, None, f"rename {dict(names)}"), dataset.view


def dropped(dataset: DatasetCore, names: str | Sequence[str]) -> tuple[DatasetStore, View]:
    """See `Dataset.drop`."""
    check_editable(dataset.store)
    edit = dropping(dataset.manifest.schema, names)
    columns = [names] if isinstance(names, str) else list(names)
    return edited_columns(dataset.store, edit, None, f"drop {', '.join(columns)}"), dataset.view


def with_more_facts(dataset: DatasetCore, facts: Any) -> tuple[DatasetStore, View]:
    """See `Dataset.with_facts`."""
    check_editable(dataset.store)
    episodes, names = with_facts(dataset, facts)
    return edited_facts(dataset.store, episodes, f"with_facts {', '.join(names)}"), dataset.view
