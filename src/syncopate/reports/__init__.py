"""Reports: artefacts made readable. Presentation only: nothing here measures, plans or predicts."""
