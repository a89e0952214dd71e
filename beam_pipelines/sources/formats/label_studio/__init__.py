"""Source `label_studio`: JSON exports of Label Studio."""
