interface Props {
  /** The name of the figure in the REST answer. */
  field: string;
  value: number | string | null | undefined;
  text: string;
}

/** A figure as people read it, with the unrounded one beside it for whoever compares it with the REST answer. */
export function Value({ field, value, text }: Props) {
  return (
    <span data-field={field} data-value={value ?? "null"}>
      {text}
    </span>
  );
}
