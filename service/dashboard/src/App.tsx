import { TokenForm } from "./access/TokenForm";
import { useAccess } from "./access/useAccess";
import { forgetToken } from "./api/token";
import { JobPage } from "./job/JobPage";
import { JobsPage } from "./jobs/JobsPage";
import { useRoute } from "./live/route";

export function App() {
  const route = useRoute();
  const { needed, refused, given } = useAccess();
  return (
    <>
      <header class="masthead">
        <a class="brand" href="#/">
          Overlane
        </a>
        <span class="quiet">TorchRec training with hidden embedding AllToAlls</span>
        {given && (
          <button type="button" class="forget" onClick={forgetToken}>
            Forget token
          </button>
        )}
      </header>
      <main>
        {needed && <TokenForm key={String(refused)} refused={refused} />}
        {!needed &&
          (route.page === "job" ? <JobPage key={route.id} id={route.id} /> : <JobsPage cursor={route.cursor} />)}
      </main>
    </>
  );
}
