"""Tokens of every role, as a tokens file and as headers."""

from pathlib import Path

from service.security.roles import Role
from service.security.tokens_file import TokenEntry, new_entry

WHO = {
    "root": (Role.ADMIN, "*"),
    "prometheus": (Role.VIEWER, "*"),
    "looker": (Role.VIEWER, "ranking"),
    "ci": (Role.SUBMITTER, "ranking"),
    "rival": (Role.SUBMITTER, "ads"),
}


class Callers:
    """One token for each name in `WHO`, known to the service through `file`."""

    def __init__(self, file: Path) -> None:
        self.file = file
        made = {name: new_entry(name, role, project) for name, (role, project) in WHO.items()}
        self.tokens: dict[str, str] = {name: token for name, (token, _) in made.items()}
        self.entries: dict[str, TokenEntry] = {name: entry for name, (_, entry) in made.items()}
        self.write()

    def write(self) -> None:
        """Write the entries that are there now, as an editor does: a new file in the place of the old one."""
        partial = self.file.with_suffix(".partial")
        partial.write_text("".join(f"{entry.line}\n" for entry in self.entries.values()))
        partial.chmod(0o600)
        partial.replace(self.file)

    def headers(self, name: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[name]}"}
