import { JobPage } from "./job/JobPage";
import { JobsPage } from "./jobs/JobsPage";
import { useRoute } from "./live/route";

export function App() {
  const route = useRoute();
  return (
    <>
      <header class="masthead">
        <a class="brand" href="#/">
          Overlane
        </a>
        <span class="quiet">TorchRec training with hidden embedding AllToAlls</span>
      </header>
      <main>
        {route.page === "job" ? <JobPage key={route.id} id={route.id} /> : <JobsPage cursor={route.cursor} />}
      </main>
    </>
  );
}
