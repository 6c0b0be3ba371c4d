import { defineConfig } from "vite";

// Relative addresses let the page live under any prefix of a reverse proxy. Nothing is inlined: the page runs under
// `default-src 'self'`, which allows neither data: addresses nor inline scripts.
export default defineConfig({
  base: "./",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: { outDir: "dist", emptyOutDir: true, assetsInlineLimit: 0, target: "es2022" },
});
